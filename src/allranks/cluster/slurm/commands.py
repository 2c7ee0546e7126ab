"""Run one Slurm command: no shell, a time limit, errors as sentences."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.cluster.slurm.submit_environment import clean_environment, query_environment
from allranks.errors import MissingDependencyError, SlurmError

__all__ = ["clean_environment", "cluster_version", "query", "run_slurm"]

_PREFIX = re.compile(r"^(?:s[a-z]+: (?:error: |fatal: )?|slurm_\w+ error: )", re.MULTILINE)
_NO_CONTROLLER = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Zero Bytes were transmitted",
    "Connection timed out",
    "Socket timed out",
    "Transport endpoint is not connected",
)
_NO_CONFIGURATION = ("Could not establish a configuration source", "Unable to establish config")


def check_configuration(env: Mapping[str, str]) -> None:
    """Refuse a missing slurm.conf at once: Slurm's commands retry it for a whole minute."""
    file = env.get("SLURM_CONF")
    if file and not Path(file).is_file():
        raise SlurmError(
            f"SLURM_CONF names {file}, which is not there.\n"
            "Correct it, or do without: unset SLURM_CONF"
        )


def run_slurm(
    command: Sequence[str],
    timeout: float = 30,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> str:
    """Run a command and return what it printed; SlurmError with Slurm's own line when it failed.

    Slurm's clients retry for minutes while slurmctld is down, so every call has a limit.
    """
    check_configuration(os.environ if env is None else env)
    try:
        done = subprocess.run(
            [*command],
            capture_output=True,
            timeout=timeout,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError as error:
        raise _not_there(command[0], cwd) from error
    except PermissionError as error:
        raise MissingDependencyError(f"'{command[0]}' may not be run here: {error}.") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(
            f"Slurm did not answer '{command[0]}' within {timeout:g} s; its controller (slurmctld) "
            "may be down or busy.\nAsk it with: scontrol ping"
        ) from error
    if done.returncode:
        raise SlurmError(_meaning(command[0], _text(done.stderr) or _text(done.stdout)))
    return _text(done.stdout)


def query(command: Sequence[str], timeout: float = 30, env: Mapping[str, str] | None = None) -> str:
    """Run a command as run_slurm does, without variables that change what it prints."""
    return run_slurm(command, timeout, query_environment(os.environ if env is None else env))


def cluster_version(env: Mapping[str, str] | None = None) -> tuple[int, int, int]:
    """Return the version of the controller, which the login node's client may not share: (22, 5, 8)."""
    text = query(["scontrol", "show", "config"], env=env)
    if match := re.search(r"^SLURM_VERSION\s*=\s*(\d+)\.(\d+)(?:\.(\d+))?", text, re.MULTILINE):
        return int(match[1]), int(match[2]), int(match[3] or 0)
    raise SlurmError("'scontrol show config' names no SLURM_VERSION.")


def _not_there(program: str, cwd: str | os.PathLike[str] | None) -> Exception:
    """Return the error for a missing program; FileNotFoundError also means a missing working folder."""
    if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - any path type
        return SlurmError(f"The folder {os.fspath(cwd)} is not there, so '{program}' cannot start.")
    return MissingDependencyError(
        f"Slurm's command '{program}' is not on this machine.\n"
        "Log in to a login node of the cluster, or load its module (often: module load slurm)."
    )


def _meaning(program: str, stderr: str) -> str:
    """Return Slurm's error without the program's name, explained where it only names a socket."""
    own = _PREFIX.sub("", stderr).strip() or "it gave no reason"
    if any(sign in stderr for sign in _NO_CONTROLLER):
        return (
            f"Slurm's controller (slurmctld) does not answer '{program}'. "
            f"Ask it with: scontrol ping\nSlurm: {own}"
        )
    if any(sign in stderr for sign in _NO_CONFIGURATION):
        return (
            f"'{program}' finds no slurm.conf. Is this a login node? Set SLURM_CONF to the file.\n"
            f"Slurm: {own}"
        )
    return f"{program}: {own}"


def _text(raw: bytes) -> str:
    """Decode the output; job names may hold any bytes and must not make the rest unreadable."""
    return raw.decode("utf-8", "replace").rstrip("\n")
