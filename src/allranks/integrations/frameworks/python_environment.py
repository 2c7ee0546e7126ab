"""A Python environment: its interpreter, its packages, and the commands that install into it."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.core.shell import join
from allranks.errors import UsageError
from allranks.integrations.frameworks import interpreter_probe as probe

LAUNCH_VARIABLES = (
    "SLURM_", "PMI", "OMPI_", "HYD", "I_MPI_HYDRA", "HOROVOD_RANK", "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_", "HOROVOD_GLOO_", "HOROVOD_HOSTNAME",
    "HOROVOD_ELASTIC",
)  # fmt: skip
"""Removed for the processes that we start: inside a job they would look for the job's other ranks."""

_OTHER_FRAMEWORKS = ("tensorflow", "deepspeed", "accelerate", "transformers", "mpi4py")
NEW_VENV = "train"
"""The folder of the venv in our advice where pip is forbidden."""

_RUN_FILE = "import pathlib,sys;exec(pathlib.Path(sys.argv[1]).read_bytes())"
"""Short, since a program that is not Python repeats it in its error."""


@dataclass(frozen=True)
class PythonEnvironment:
    """One interpreter with its packages, as the probe found them."""

    python: str
    """The path to start it by: a venv's own link, not its target."""
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
        """Facts of the interpreter: version, tag, platform, folders."""
        found: dict[str, Any] = self.facts["python"]
        return found

    @property
    def search_path(self) -> str:
        """PATH as a job in this environment has it: its own programs first."""
        own = str(Path(self.python).parent)
        return os.pathsep.join([own, os.environ.get("PATH", os.defpath)])

    def program(self, name: str) -> str | None:
        """Return the path of a program, as a job in this environment finds it."""
        return shutil.which(name, path=self.search_path)

    def process_environment(self, **changes: str) -> dict[str, str]:
        """Return the environment for a process in it, without the variables of a launcher."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
        return {**kept, "PATH": self.search_path, **changes}

    @functools.cached_property
    def is_active(self) -> bool:
        """Whether ``python`` on PATH is this interpreter."""
        if not self._beside("python"):
            return False
        return Path(shutil.which("python") or "").resolve() == Path(self.python).resolve()

    def _beside(self, name: str) -> bool:
        """Whether the program that PATH finds lies in this Python's own folder."""
        first = shutil.which(name)
        return first is not None and Path(first).absolute().parent == Path(self.python).parent

    @property
    def is_managed(self) -> bool:
        """Whether the distribution forbids pip here: then a venv comes first."""
        return bool(self.about["managed"])

    @property
    def new_venv(self) -> str:
        """The command that makes a venv of this Python, with access to its frameworks."""
        has_packages = self.torch or any(self.packages[name] for name in _OTHER_FRAMEWORKS)
        options = ["--system-site-packages"] if has_packages else []
        return join([self.python, "-m", "venv", *options, NEW_VENV])

    def command_line(self, *commands: str) -> str:
        """Join commands to one line, after the one that makes a venv where pip is forbidden."""
        return " && ".join([self.new_venv, *commands] if self.is_managed else commands)

    def pip_command(self, *words: str) -> str:
        """Return a complete pip command for this Python."""
        return self.command_line(self.pip_part(*words))

    def allranks_command(self, *words: str) -> str:
        """Return a complete ``allranks frameworks`` command for this Python."""
        return self.command_line(self.allranks_part(*words))

    def pip_part(self, *words: str) -> str:
        """Return the pip command alone; environments that uv makes have no pip of their own."""
        if self.is_managed:
            return join([f"{NEW_VENV}/bin/pip", *words])
        own = [self.python, "-m", "pip"]
        if self.packages["pip"]:
            return join([*(["pip"] if self.is_active and self._beside("pip") else own), *words])
        if shutil.which("uv"):
            return join(["uv", "pip", words[0], "--python", self.python, *words[1:]])
        if self._other_pip:
            return join(["pip", "--python", self.python, *words])
        return f"{join([self.python, '-m', 'ensurepip'])} && {join([*own, *words])}"

    def allranks_part(self, *words: str) -> str:
        """Return the ``allranks frameworks`` command alone, for the new venv where pip is forbidden."""
        where = [] if self.is_active else ["--python", self.python]
        where = ["--venv", NEW_VENV] if self.is_managed else where
        return join(["allranks", "frameworks", *words, *where])

    @functools.cached_property
    def _other_pip(self) -> bool:
        """Whether the pip on PATH can install into another Python: it has ``--python`` since 22.3."""
        try:
            done = subprocess.run(
                ["pip", "--version"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        match = re.match(r"pip (\d+)\.(\d+)", done.stdout)
        return match is not None and (int(match[1]), int(match[2])) >= (22, 3)


def choose_python(python: str | None, venv: str | None, default: str) -> str:
    """Return the interpreter that the options name."""
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


def probe_python(python: str, limit: float = 60) -> PythonEnvironment:
    """Run the probe in a Python interpreter and return its environment."""
    try:
        done = subprocess.run(
            [python, "-c", _RUN_FILE, probe.__file__], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=limit, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{python} cannot be started: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python} did not answer within {limit:.0f} s.") from None
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(probe.MARK):
            return PythonEnvironment(python, json.loads(line.removeprefix(probe.MARK)))
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    why = "." if _RUN_FILE in last else f": {last[:200]}"
    raise UsageError(f"{python} is not a Python that allranks can inspect (3.8 or newer){why}")
