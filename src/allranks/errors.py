"""Every error a user can meet, in one tree.

    AllranksError                exit code 1
    ├── UsageError               2    a value that cannot be read, an option that does not fit
    ├── JobError                 2    the job contradicts itself
    ├── SiteError                2    the site cannot satisfy the job, or is not known
    ├── RunNotFoundError         2    no run of that name, folder or job id
    ├── WorldError               3    the rank of the process is unknown, or two sources contradict
    ├── MissingDependencyError   4    a package or program that the request needs is not installed
    ├── SlurmError               5    Slurm refused, or did not answer
    └── SandboxError             6    the local Slurm cluster did not start or stop

    Interrupted                  75   not an error: the training saved a checkpoint and is resumed later

A message has what was asked, what is there, and what to type. It needs no traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class AllranksError(Exception):
    """Base of all errors that the command prints without a traceback."""

    exit_code = 1


class UsageError(AllranksError):
    """A value that cannot be read, or an option that does not fit."""

    exit_code = 2


class JobError(AllranksError):
    """The job contradicts itself."""

    exit_code = 2


class SiteError(AllranksError):
    """The site cannot satisfy the job, or is not known."""

    exit_code = 2


class RunNotFoundError(AllranksError):
    """No run of that name, folder or job id."""

    exit_code = 2


class WorldError(AllranksError):
    """The rank of the process is unknown, or two sources contradict each other."""

    exit_code = 3


class MissingDependencyError(AllranksError):
    """A package or program that the request needs is not installed."""

    exit_code = 4


class SlurmError(AllranksError):
    """Slurm refused, or did not answer."""

    exit_code = 5


class SandboxError(AllranksError):
    """The local Slurm cluster did not start or stop."""

    exit_code = 6


class Interrupted(SystemExit):
    """The training saved a checkpoint before its job ends and exits; the next attempt resumes from it.

    A SystemExit: a script that does not catch it ends quietly. The code is 0 under a job script of allranks,
    since launchers take any other for a crash.
    """

    EXIT_CODE = 75

    def __init__(self, sentence: str, *, watched: bool) -> None:
        super().__init__(0 if watched else self.EXIT_CODE)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


REPLACED_EXIT_CODE = 78
"""The exit code of a training whose run was taken over by a later start."""

NOT_RETRIED = (2, 3, 4, REPLACED_EXIT_CODE)
"""Exit codes after which no attempt follows: another one would fail in the same way."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to this one, ignoring case."""
    import difflib  # only a mistake needs it

    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown word: `` Did you mean 'epochs'?``, or ``otherwise``."""
    close = nearest(word, known)
    return otherwise if close is None else f" Did you mean '{close}'?"
