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

_SPECIAL_STEP = 0xFFFFFFF0
"""Step ids above this are special: the batch script (-5), salloc's interactive step (-6), …"""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LEADING = re.compile(r"\d+", re.ASCII)


def first_set(env: Env, *names: str) -> str | None:
    """Return the first of the names that is set, or None."""
    return next((name for name in names if env.get(name, "").strip()), None)


def read_int(env: Env, *names: str) -> int | None:
    """Return the number in the first of the names that is set; step-level names go first."""
    name = first_set(env, *names)
    if name is None:
        return None
    try:
        return int(env[name])
    except ValueError:
        raise WorldError(f"{name}={env[name]} is not a number. Unset it or correct it.") from None


def require_int(env: Env, *names: str) -> int:
    """Return the number in the first of the names that is set; an error when none is."""
    value = read_int(env, *names)
    if value is None:
        raise WorldError(f"{' or '.join(names)} is not set, though {_neighbours(env, names[0])}.")
    return value


def step_id(env: Env) -> int | None:
    """Return the id of the srun step of this process, or None.

    Slurm 26.05 sets SLURM_STEP_ID=-5 in batch scripts, so "it is set" does not mean "inside srun".
    """
    value = read_int(env, "SLURM_STEP_ID", "SLURM_STEPID")
    return value if value is not None and 0 <= value < _SPECIAL_STEP else None


def parse_variable(env: Env, name: str, parse: Callable[[str], T]) -> T:
    """Return ``parse(env[name])``; an error names the variable."""
    try:
        return parse(env[name])
    except UsageError as error:
        raise WorldError(f"{name}={env[name]} cannot be read. {error}") from None


def visible_devices(env: Env) -> tuple[str, ...] | None:
    """Return the visible GPUs by the first variable that is set (an empty one hides them all)."""
    for name in _DEVICES:
        if name in env:
            return _devices(env[name])
    return None


def has_private_devices(env: Env) -> bool:
    """Whether each task sees GPUs of its own; Slurm 24.11 no longer sets SLURM_GPUS_PER_TASK."""
    bound = env.get("SLURMD_TRES_BIND", "") + env.get("SLURM_TRES_BIND", "")
    return "per_task:" in bound or "SLURM_GPUS_PER_TASK" in env


def hydra_proxy() -> str:
    """Return the pid of the MPICH proxy above this process, which ranks of one launch share on a node.

    Hydra sets no job id, and two runs of one command on a node must not use one port.
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
    """Return the entries up to the first invalid one, as CUDA does: ``-1`` and ``NoDevFiles`` mean none."""
    found: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        if not (_LEADING.match(word) or word.startswith(("GPU-", "MIG-"))):
            break
        found.append(word)
    return tuple(found)


def _neighbours(env: Env, name: str) -> str:
    """Return what is set, such as ``SLURM_STEP_ID=0 is``, so that the reader sees what is missing."""
    family = name.split("_")[0]
    found = [f"{key}={value}" for key, value in sorted(env.items()) if key.startswith(family + "_")]
    return ", ".join(found[:4]) + (" are" if len(found) > 1 else " is") if found else "needed"
