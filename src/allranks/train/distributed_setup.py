"""The session of a process: ranks, device and seed; for the Trainer and for `prepare`."""

from __future__ import annotations

import atexit
import gc
import os
import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from allranks.errors import UsageError
from allranks.runtime.agent.self_launch import ensure_ranks
from allranks.runtime.world import horovod_init as horovod
from allranks.runtime.world.communicator import get_communicator
from allranks.runtime.world.model import World
from allranks.runtime.world.process_group import init, is_started_here, world
from allranks.train.config import TrainConfig
from allranks.train.strategies.base import Strategy

_live: weakref.WeakSet[Strategy] = weakref.WeakSet()


@dataclass(frozen=True)
class Session:
    """This rank, ready to communicate."""

    world: World
    device: torch.device
    backend: str | None
    """The torch.distributed backend; None for a single process."""
    seed: int
    """The base of the data's order, the same on all ranks."""


def start_session(config: TrainConfig, log_folder: Callable[[], Path] | None = None) -> Session:
    """Start missing ranks, connect to the others, choose the device, seed the generators."""
    on_gpu = _wants_gpu(config.compute_setup)
    named = str(getattr(config.strategy, "name", config.strategy)).lower()
    if named == "horovod":
        horovod.require_horovod()  # before ranks are started that would all miss it
    here = ensure_ranks(config.nprocs, log_folder=_folder_for(config, log_folder))
    if named == "horovod" and not dist.is_initialized():
        here = horovod.find_master_address(here)
    if here.size > 1 or named not in ("single", "auto"):
        here = init(
            config.backend, timeout=config.timeout_seconds, device=None if on_gpu else "cpu"
        )
    device = _device(here, on_gpu)
    if config.deterministic:
        use_deterministic_algorithms()
    seed = _shared_seed(config.seed, here)
    if config.seed is not None or here.size > 1:
        seed_rank(seed, here.rank)
    backend = str(dist.get_backend()) if dist.is_initialized() else None
    return Session(here, device, backend, seed)


def _folder_for(config: TrainConfig, log_folder: Callable[[], Path] | None) -> Path | None:
    """Return where ranks that are started here write; only on the first node."""
    here = world()
    starts = config.nprocs is not None and config.nprocs > here.size
    return log_folder() if starts and log_folder is not None and here.is_main else None


def close_at_exit(strategy: Strategy) -> None:
    """Drop what the strategy wrapped at the end of the process, before the process group.

    DDP's reducer holds the process group, whose threads must be gone before the interpreter is.
    """
    if not _live:
        atexit.register(_close_strategies)
    _live.add(strategy)


def _close_strategies() -> None:
    for strategy in list(_live):
        strategy.close()
    if dist.is_available() and dist.is_initialized():
        gc.collect()


def _wants_gpu(setup: str) -> bool:
    there = torch.cuda.is_available()
    if setup == "gpu" and not there:
        raise UsageError(
            "compute_setup='gpu', but this process sees no GPU.\n"
            "Request one (--gpus-per-node 1), check `nvidia-smi` and CUDA_VISIBLE_DEVICES, "
            "or use compute_setup='auto'."
        )
    return there and setup != "cpu"


def _device(world: World, on_gpu: bool) -> torch.device:
    if not on_gpu or world.device_index is None:
        return torch.device("cpu")
    if dist.is_initialized() and is_started_here():
        return torch.device("cuda", torch.cuda.current_device())
    index = world.device_index % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _shared_seed(seed: int | None, world: World) -> int:
    if seed is not None:
        return seed
    return int(get_communicator(world.size).broadcast(torch.initial_seed() % (1 << 31)))


def seed_rank(seed: int, rank: int) -> None:
    """Seed Python, NumPy (when loaded) and torch, so that ranks draw different dropout masks."""
    own = (seed * 1_000_003 + rank) % (1 << 63)
    random.seed(own)
    torch.manual_seed(own)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(own % (1 << 32))


def use_deterministic_algorithms() -> None:
    """Allow only deterministic algorithms; torch raises for those that are not."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def random_state() -> dict[str, Any]:
    """Return the state of this rank's random generators, as tensors and plain containers."""
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
    """Restore the state of this rank's random generators."""
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
