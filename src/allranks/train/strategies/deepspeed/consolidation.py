"""Read plain weights from a checkpoint of DeepSpeed's own ``engine.save_checkpoint``.

The Trainer's checkpoints hold the whole model already; this is for scripts that used DeepSpeed directly.
"""

from __future__ import annotations

import importlib
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from allranks.errors import MissingDependencyError, UsageError


def consolidate(
    folder: str | Path, tag: str | None = None, *, trusted: bool = False
) -> dict[str, torch.Tensor]:
    """Return the whole model in fp32 by parameter names, of any ZeRO stage and number of ranks.

    ``folder`` is the argument of ``save_checkpoint``; ``tag`` is the latest by default. DeepSpeed's files are
    pickles, which may run any code when they are read: ``trusted=True`` confirms that you made them.
    """
    path = Path(folder)
    tag = tag or _latest(path)
    inside = path / tag
    if not inside.is_dir():
        there = sorted(each.name for each in path.iterdir() if each.is_dir())
        raise UsageError(f"{path} has no checkpoint '{tag}'. It has {', '.join(there) or 'none'}.")
    if not trusted:
        raise UsageError(
            f"{inside} holds pickles of DeepSpeed, which may run any code when they are read.\n"
            f"If you or your own job made them: consolidate({str(folder)!r}, trusted=True)."
        )
    if [*inside.glob("*_optim_states.pt")]:
        return _from_zero(path, tag)
    return _from_whole(inside)


def _latest(path: Path) -> str:
    try:
        return (path / "latest").read_text().strip()
    except OSError:
        raise UsageError(
            f"{path} is not a checkpoint folder of DeepSpeed: it has no file 'latest'.\n"
            "Use the folder that was passed to engine.save_checkpoint, or give tag='global_step100'."
        ) from None


def _from_zero(path: Path, tag: str) -> dict[str, torch.Tensor]:
    """Join the files of the ranks with DeepSpeed's own zero_to_fp32."""
    try:
        reader = importlib.import_module("deepspeed.utils.zero_to_fp32")
    except ImportError:
        raise MissingDependencyError(
            "Joining ZeRO checkpoints needs the 'deepspeed' package. "
            "Install it with: pip install 'allranks[deepspeed]'"
        ) from None
    # It prints its progress; problems are raised.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        state = reader.get_fp32_state_dict_from_zero_checkpoint(str(path), tag)
    return _plain(state)


def _from_whole(inside: Path) -> dict[str, torch.Tensor]:
    """Read the one file with the whole model that ZeRO 0 writes."""
    files = sorted(inside.glob("mp_rank_*_model_states.pt"))
    if len(files) != 1:
        raise UsageError(
            f"{inside} holds {len(files)} model files: models with model parallelism are not supported."
        )
    state = torch.load(files[0], map_location="cpu", weights_only=False)
    return _plain(state["module"])


def _plain(state: Any) -> dict[str, torch.Tensor]:
    """Return the tensors (tied ones stay tied), in fp32 if they are floating-point."""
    made: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            wide = value.detach().float() if value.is_floating_point() else value.detach()
            found[name] = made.setdefault(id(value), wide)
    return found
