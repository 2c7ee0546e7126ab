"""The Python that is meant, and what it has."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.errors import UsageError
from allranks.frameworks import probe
from allranks.shell import join

LAUNCH_VARIABLES = (
    "SLURM_", "PMI", "OMPI_", "HYD", "I_MPI_HYDRA", "HOROVOD_RANK", "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_", "HOROVOD_GLOO_", "HOROVOD_HOSTNAME",
    "HOROVOD_ELASTIC",
)  # fmt: skip
"""Left out around what we load ourselves: inside a job it would look for the job's other ranks."""


@dataclass(frozen=True)
class Target:
    """One interpreter with its packages, as the probe found them."""

    python: str
    """The path to start it by: a venv's own link, not what it points at."""
    facts: dict[str, Any]

    @property
    def packages(self) -> dict[str, str | None]:
        found: dict[str, str | None] = self.facts["packages"]
        return found

    @property
    def torch(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.facts["torch"]
        return found

    @property
    def horovod(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.facts["horovod"]
        return found

    @property
    def tensorflow(self) -> str | None:
        return self.packages["tensorflow"]

    @property
    def about(self) -> dict[str, Any]:
        """The interpreter itself: version, tag, platform, folders."""
        found: dict[str, Any] = self.facts["python"]
        return found

    @property
    def search_path(self) -> str:
        """PATH as a job in this environment has it: its own programs first."""
        own = str(Path(self.python).parent)
        return os.pathsep.join([own, os.environ.get("PATH", os.defpath)])

    def program(self, name: str) -> str | None:
        """A program, as a job in this environment finds it."""
        return shutil.which(name, path=self.search_path)

    def environ(self, **changes: str) -> dict[str, str]:
        """The environment for what we run in it: as without a launcher around."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
        return {**kept, "PATH": self.search_path, **changes}

    @functools.cached_property
    def active(self) -> bool:
        """Whether a plain ``pip`` or ``python`` that the user types is this one."""
        first = shutil.which("python")
        return first is not None and os.path.abspath(first) == os.path.abspath(self.python)  # noqa: PTH100

    def pip(self, *words: str) -> str:
        """A pip command for this Python, as the user would type it; uv's venvs have no pip."""
        if not self.packages["pip"] and shutil.which("uv"):
            return join(["uv", "pip", words[0], "--python", self.python, *words[1:]])
        start = ["pip"] if self.active else [self.python, "-m", "pip"]
        return join([*start, *words])

    def ours(self, *words: str) -> str:
        """One of our own commands about this Python."""
        where = [] if self.active else ["--python", self.python]
        return join(["allranks", "frameworks", *words, *where])


def choose_python(python: str | None, venv: str | None, default: str) -> str:
    """The interpreter that the options name."""
    if python and venv:
        raise UsageError("Give --python or --venv, not both.")
    if venv:
        return _inside(Path(venv).expanduser(), "--venv")
    if not python:
        return default
    if Path(python).expanduser().is_dir():
        return _inside(Path(python).expanduser(), "--python")
    found = shutil.which(str(Path(python).expanduser()) if "/" in python else python)
    if found is None:
        raise UsageError(
            f"--python {python}: there is no such program.\nGive the path of a Python."
        )
    return os.path.abspath(found)  # noqa: PTH100  links stay: a venv is known by its link


def _inside(folder: Path, option: str) -> str:
    program = folder / "bin" / "python"
    if not program.exists():
        raise UsageError(
            f"{option} {folder}: there is no {program}.\nMake one with: python3 -m venv {folder}"
        )
    return os.path.abspath(program)  # noqa: PTH100


def look_into(python: str, limit: float = 60) -> Target:
    """Run the probe in that Python."""
    text = Path(probe.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", text],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python} did not answer within {limit:.0f} s.") from None
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(probe.MARK):
            return Target(python, json.loads(line.removeprefix(probe.MARK)))
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    raise UsageError(f"{python} is not a Python that allranks can ask (3.8 or newer): {last}")


def here() -> str:
    """Our own interpreter."""
    return sys.executable
