"""Where this process stands: its world, device and seed; the same for the Trainer and `prepare`."""

from __future__ import annotations

import atexit
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from allranks.errors import AllranksError, UsageError
from allranks.runtime.agent.spawn import ensure_ranks
from allranks.runtime.world import horovod_init as horovod
from allranks.runtime.world.model import World
from allranks.runtime.world.process_group import init, is_started_here, world
from allranks.train.config import TrainConfig
from allranks.train.seeds import be_deterministic, seed_rank
from allranks.train.strategies.base import Strategy

_live: weakref.WeakSet[Strategy] = weakref.WeakSet()


@dataclass(frozen=True)
class Session:
    """This rank, ready to communicate."""

    world: World
    device: torch.device
    backend: str | None
    """What the ranks communicate by; None for one process alone."""
    seed: int
    """The base of the data's order, the same on all ranks."""


def start_session(config: TrainConfig, log_folder: Callable[[], Path] | None = None) -> Session:
    """Start missing ranks, meet the others, choose the device, seed the generators."""
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
        be_deterministic()
    seed = _shared_seed(config.seed, here, device)
    if config.seed is not None or here.size > 1:
        seed_rank(seed, here.rank)
    backend = str(dist.get_backend()) if dist.is_initialized() else None
    return Session(here, device, backend, seed)


def _folder_for(config: TrainConfig, log_folder: Callable[[], Path] | None) -> Path | None:
    """Where started ranks write: known before they start, and only on the first node."""
    here = world()
    starts = config.nprocs is not None and config.nprocs > here.size
    return log_folder() if starts and log_folder is not None and here.is_main else None


def end_with(strategy: Strategy) -> None:
    """At the end of the process, drop what the strategy wrapped before the group is ended.

    DDP's reducer holds the process group, whose threads must be gone before the interpreter is.
    """
    if not _live:
        atexit.register(_drop)
    _live.add(strategy)


def _drop() -> None:
    for strategy in list(_live):
        strategy.close()
    if dist.is_available() and dist.is_initialized():
        gc.collect()


def share_object(value: Any, world: Any, device: torch.device) -> Any:
    """Rank 0's value on every rank; collective."""
    if world.size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=device)
    return box[0]


def share_result(make: Callable[[], Any], world: Any, device: torch.device) -> Any:
    """What rank 0 makes, on every rank; a user's mistake is told on every rank, too. Collective."""
    made, problem = None, ""
    if world.is_main:
        try:
            made = make()
        except AllranksError as error:
            if world.size == 1:
                raise
            problem = str(error)
    made, problem = share_object((made, problem), world, device)
    if problem:
        raise UsageError(problem)
    return made


def total_over_ranks(value: float, session: Session) -> float:
    """The sum of every rank's number; collective."""
    if session.world.size == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=session.device)
    dist.all_reduce(total)
    return float(total)


def _wants_gpu(setup: str) -> bool:
    there = torch.cuda.is_available()
    if setup == "gpu" and not there:
        raise UsageError(
            "compute_setup='gpu', but this process sees no GPU.\n"
            "Ask for one (--gpus-per-node 1), look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, "
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


def _shared_seed(seed: int | None, world: World, device: torch.device) -> int:
    if seed is not None:
        return seed
    return int(share_object(torch.initial_seed() % (1 << 31), world, device))
