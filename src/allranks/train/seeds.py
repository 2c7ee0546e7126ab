"""Seeds: the same data order on every rank, other random numbers on each."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch


def seed_rank(seed: int, rank: int) -> None:
    """Seed Python, NumPy (when loaded) and torch, so that ranks draw different dropout masks."""
    own = (seed * 1_000_003 + rank) % (1 << 63)
    random.seed(own)
    torch.manual_seed(own)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(own % (1 << 32))


def be_deterministic() -> None:
    """Only algorithms that give the same numbers twice; an error names those that do not."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def random_state() -> dict[str, Any]:
    """This rank's generators, as tensors and plain containers."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(words), gauss],
    }
    if "numpy" in sys.modules:
        import numpy

        found: Any = numpy.random.get_state()
        kind, keys, *rest = found
        numbers = torch.from_numpy(keys.astype(numpy.int64))
        state["numpy"] = [str(kind), numbers, *(float(each) for each in rest)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Continue with the numbers that would have come next."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        import numpy

        kind, keys, position, has_gauss, gauss = state["numpy"]
        words = keys.numpy().astype(numpy.uint32)
        numpy.random.set_state((kind, words, int(position), int(has_gauss), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
