"""The programs that a sandbox starts: find them, or name the packages to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from allranks.errors import MissingDependencyError

# Debian keeps daemons where an ordinary user's PATH does not look.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class _Package:
    apt: str
    dnf: str


_CLIENT = _Package("slurm-client", "slurm")
_PACKAGES = {
    "slurmctld": _Package("slurmctld slurm-wlm-basic-plugins", "slurm-slurmctld"),
    "slurmd": _Package("slurmd slurm-wlm-basic-plugins", "slurm-slurmd"),
    "munged": _Package("munge", "munge"),
    "sbatch": _CLIENT,
    "srun": _CLIENT,
    "sinfo": _CLIENT,
    "squeue": _CLIENT,
    "scancel": _CLIENT,
    "scontrol": _CLIENT,
    "unshare": _Package("util-linux", "util-linux"),
    "mount": _Package("mount", "util-linux"),
    "ip": _Package("iproute2", "iproute"),
    "slurmdbd": _Package("slurmdbd slurm-wlm-mysql-plugin", "slurm-slurmdbd"),
    "sacctmgr": _CLIENT,
    "mariadbd": _Package("mariadb-server", "mariadb-server"),
    "mariadb": _Package("mariadb-client", "mariadb"),
    "mariadb-install-db": _Package("mariadb-server", "mariadb-server"),
}
_BASE = (
    "slurmctld",
    "slurmd",
    "munged",
    "sbatch",
    "srun",
    "sinfo",
    "squeue",
    "scancel",
    "scontrol",
)
_ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db")
NAMESPACES = ("unshare", "mount")


def search_path() -> str:
    """Return PATH, followed by the folders of daemons."""
    have = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*have, *(folder for folder in _SBIN if folder not in have)])


def find(program: str) -> str | None:
    """Return the program's path, or None."""
    return shutil.which(program, path=search_path())


def path_of(program: str) -> str:
    """Return the program's path; MissingDependencyError when it is not installed."""
    found = find(program)
    if found is None:
        raise _missing([program])
    return found


def needed(isolation: str, accounting: bool) -> list[str]:
    """Return every program that such a sandbox starts."""
    names = [*_BASE]
    if isolation in ("hosts", "network"):
        names += NAMESPACES
    if isolation == "network":
        names.append("ip")
    return names + list(_ACCOUNTING if accounting else ())


def require(isolation: str = "auto", accounting: bool = False) -> None:
    """Raise MissingDependencyError, with the command to type, unless all programs are there."""
    missing = [name for name in needed(isolation, accounting) if find(name) is None]
    if missing:
        raise _missing(missing)


def slurm_version() -> str:
    """Return the installed version, like 22.05.8."""
    return _version(path_of("slurmctld"))


@lru_cache
def _version(slurmctld: str) -> str:
    done = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=30)
    found = re.search(r"\d+\.\d+[\w.-]*", done.stdout)
    return found.group() if found else done.stdout.strip()


def _missing(names: list[str]) -> MissingDependencyError:
    return MissingDependencyError(
        f"The sandbox needs programs that are not installed: {', '.join(names)}.\n"
        f"Install them with:\n{_install_lines(names)}"
    )


def _install_lines(names: list[str]) -> str:
    apt = " ".join(_unique(" ".join(_PACKAGES[name].apt for name in names)))
    dnf = " ".join(_unique(" ".join(_PACKAGES[name].dnf for name in names)))
    lines = {
        "apt-get": f"  sudo apt-get install -y --no-install-recommends {apt}",
        "dnf": f"  sudo dnf install -y {dnf}",
    }
    here = [line for manager, line in lines.items() if find(manager)]
    return "\n".join(here or lines.values())


def _unique(words: str) -> list[str]:
    return list(dict.fromkeys(words.split()))
