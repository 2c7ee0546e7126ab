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

A message says what was asked, what is there, and what to type. It never needs a traceback.
"""

from __future__ import annotations


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
