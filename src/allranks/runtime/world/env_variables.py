"""Reading environment variables, with errors that name the variable and its value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from allranks.errors import UsageError, WorldError

Env = Mapping[str, str]
T = TypeVar("T")

_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LEADING = re.compile(r"\d+", re.ASCII)


def given(env: Env, *names: str) -> str | None:
    """The first of the names that is set, or None."""
    return next((name for name in names if env.get(name, "").strip()), None)


def number(env: Env, *names: str) -> int | None:
    """The number in the first of the names that is set; step-level names go first."""
    name = given(env, *names)
    if name is None:
        return None
    try:
        return int(env[name])
    except ValueError:
        raise WorldError(f"{name}={env[name]} is not a number. Unset it or correct it.") from None


def required(env: Env, *names: str) -> int:
    """As `number`, but one of the names must be there."""
    value = number(env, *names)
    if value is None:
        raise WorldError(f"{' or '.join(names)} is not set, though {_neighbours(env, names[0])}.")
    return value


def parsed(env: Env, name: str, parse: Callable[[str], T]) -> T:
    """``parse(env[name])``, with the variable named when the text is malformed."""
    try:
        return parse(env[name])
    except UsageError as error:
        raise WorldError(f"{name}={env[name]} cannot be read. {error}") from None


def visible_devices(env: Env) -> tuple[str, ...] | None:
    """GPUs the process may see, by the first variable that is set (an empty one hides them all)."""
    for name in _DEVICES:
        if name in env:
            return _devices(env[name])
    return None


def private_devices(env: Env) -> bool:
    """Does each task see GPUs of its own? 24.11 no longer sets SLURM_GPUS_PER_TASK."""
    bound = env.get("SLURMD_TRES_BIND", "") + env.get("SLURM_TRES_BIND", "")
    return "per_task:" in bound or "SLURM_GPUS_PER_TASK" in env


def hydra_proxy() -> str:
    """The pid of the MPICH proxy above this process: ranks of one launch share it on a node.

    Hydra sets no job id, and two runs of one command on a node must not meet at one port.
    """
    pid = os.getpid()
    while pid > 1:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        name, _, rest = text.partition("(")[2].rpartition(")")
        if "hydra" in name or "mpiexec" in name:
            return str(pid)
        pid = int(rest.split()[1])
    return ""


def _devices(text: str) -> tuple[str, ...]:
    """CUDA reads up to the first invalid entry, so ``-1`` and ``NoDevFiles`` mean none."""
    found: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        if not (_LEADING.match(word) or word.startswith(("GPU-", "MIG-"))):
            break
        found.append(word)
    return tuple(found)


def _neighbours(env: Env, name: str) -> str:
    """``SLURM_STEP_ID=0 is``: what is set, so the reader sees which half is missing."""
    family = name.split("_")[0]
    found = [f"{key}={value}" for key, value in sorted(env.items()) if key.startswith(family + "_")]
    return ", ".join(found[:4]) + (" are" if len(found) > 1 else " is") if found else "needed"
