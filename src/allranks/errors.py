"""Every error a user can meet, in one tree.

    AllranksError                exit code 1
    ├── UsageError               2    a value that cannot be read, an option that does not fit
    ├── JobError                 2    the job contradicts itself
    ├── SiteError                2    the site cannot satisfy the job, or is not known
    ├── RunNotFoundError         2    no run of that name, folder or job id
    ├── WorldError               3    the process cannot tell its rank, or is told two different ones
    ├── MissingDependencyError   4    a package or program that the request needs is not installed
    ├── SlurmError               5    Slurm refused, or did not answer
    └── SandboxError             6    the local Slurm cluster did not start or stop

    Interrupted                  75   no error: the training was saved before its end and goes on later

A message says what was asked, what is there, and what to type. It never needs a traceback.
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
    """The process cannot tell its rank, or is told two different ones."""

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
    """The training saved itself before its job ends and leaves; the next attempt goes on from there.

    A SystemExit: a script that does not know of it ends quietly. The code is 0 where allranks' own job
    script looks after the rest, since launchers take any other for a crash.
    """

    EXIT_CODE = 75

    def __init__(self, sentence: str, *, watched: bool) -> None:
        super().__init__(0 if watched else self.EXIT_CODE)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


REPLACED = 78
"""The exit code of a training whose run another start has taken over."""

NEVER_AGAIN = (2, 3, 4, REPLACED)
"""Exit codes that mean "do not try again": a mistake that another attempt would only repeat."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, whatever its case."""
    import difflib  # only a mistake needs it

    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown word: `` Did you mean 'epochs'?``, or ``otherwise``."""
    close = nearest(word, known)
    return otherwise if close is None else f" Did you mean '{close}'?"
