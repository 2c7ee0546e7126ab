"""Checkpoints in the middle of an epoch, taken up by other ranks and strategies.

The start with 2 ranks leaves its checkpoints in FOLDER for the start with one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from ranks_script import FOLDER, RANKS, WAYS, Curve, config, flat, line, points, sgd, weights
from torch.utils.data import DataLoader, IterableDataset

from allranks.train.callbacks import EarlyStopping, When

CUT = 9
"""Epochs have 6 steps, so this is in the middle of the second."""


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    for way in WAYS:
        yield f"{way} whole", partial(training, way, save=f"{way}-{RANKS}")
    for way in WAYS:
        for saved in ("ddp-2", "fsdp-2"):
            yield f"{way} from {saved}", partial(training, way, resume=saved)
    yield "accumulated whole", partial(training, WAYS[0], save=f"accumulated-{RANKS}", accumulate=2)
    yield (
        "accumulated resumed",
        partial(training, WAYS[0], resume=f"accumulated-{RANKS}", accumulate=2),
    )
    yield "schedule", epoch_schedule
    yield "stream", stream


def training(way: str, save: str = "", resume: str = "", **fields: Any) -> dict[str, Any]:
    """Three epochs of 21 samples; a whole one saves at step CUT, or at step 4 with accumulation."""
    cut = 4 if fields else CUT
    model = line()
    patience = EarlyStopping("val_loss", patience=50, min_delta=1e9)  # nothing is progress
    seen: list[int] = []
    settings = config(
        epochs=3, ema=0.8, clip_norm=0.5, strategy=way, name=save or "resumed", checkpoint=bool(save),
        checkpoint_every_steps=cut if save else None, checkpoint_keep=9, checkpoint_async=False,
        resume=str(FOLDER / resume) if resume else False, **fields,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    callbacks = [patience, When("step_end", lambda t: seen.append(t.step))]
    trainer = Curve(model, optimizer, settings, scheduler=scheduler, callbacks=callbacks)
    trainer.fit(DataLoader(points(21), 4, shuffle=True), DataLoader(points(5), 4))
    with trainer.averaged():
        averaged = trainer.model_state()
    if save:
        keep(trainer, cut, save)
    return {
        "losses": trainer.losses, "val": trainer.validated, "weights": weights(trainer),
        "averaged": flat(averaged), "waited": patience.waited, "first": seen[0],
        "rate": optimizer.param_groups[0]["lr"], "epoch": trainer.epoch, "step": trainer.step,
    }  # fmt: skip


def keep(trainer: Any, step: int, saved: str) -> None:
    if trainer.world.is_main:
        shutil.copytree(trainer.folder / "checkpoints" / f"step-{step:08d}", FOLDER / saved)
    if dist.is_initialized():
        dist.barrier()


def epoch_schedule() -> dict[str, Any]:
    """A scheduler per epoch: every checkpoint of an epoch's last step leads to the same rates."""
    rates: dict[str, list[float]] = {}

    def run(name: str, val: Any = None, **fields: Any) -> Any:
        model = line()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        heard = When("epoch_start", lambda t: rates[name].append(optimizer.param_groups[0]["lr"]))
        rates[name] = []
        settings = config(epochs=4, scheduler_every="epoch", name=f"schedule-{name}", **fields)
        trainer = Curve(model, optimizer, settings, scheduler=scheduler, callbacks=[heard])
        trainer.fit(DataLoader(points(13), 4), val)
        return trainer

    often = {"epoch-2": {"checkpoint_every": 2}, "step-8": {"checkpoint_every_steps": 8}}
    for name, how in often.items():  # in the middle of the last step's end, and after it
        whole = run("whole", checkpoint=True, checkpoint_keep=9, checkpoint_async=False, **how)
        val = DataLoader(points(5), 4)
        run(name, val, resume=str(whole.checkpoints / "step-00000008"))
    return rates


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        rank, size = (dist.get_rank(), RANKS) if dist.is_initialized() else (0, 1)
        yield from [sample for n, sample in enumerate(points(12)) if n % size == rank]


def stream() -> dict[str, Any]:
    """The last checkpoint of a stream stands at the end of an epoch: the next one follows."""
    looks: dict[str, list[int]] = {}

    def run(name: str, epochs: int, **fields: Any) -> Any:
        model = line()
        looks[name] = []
        heard = When("epoch_end", lambda t: looks[name].append(t.epoch))
        settings = config(
            epochs=epochs, batch_size_is="per_rank", name=f"stream-{name}",
            shard_iterable=False, **fields,
        )  # fmt: skip
        trainer = Curve(model, sgd(model), settings, "mse", callbacks=[heard])
        trainer.fit(DataLoader(Stream(), 2))
        return trainer

    whole = run("whole", 3)
    half = run("half", 2, checkpoint=True)
    rest = run("rest", 3, resume=str(half.folder))
    return {
        "looks": looks, "whole": whole.losses, "parts": half.losses + rest.losses,
        "weights": [weights(whole), weights(rest)],
    }  # fmt: skip
