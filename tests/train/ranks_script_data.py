"""Trainings over data that does not divide among the ranks: lists, streams, batch norms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch.distributed as dist
from ranks_script import RANKS, WAYS, Curve, config, line, mean_target, points, sgd, weights
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SIZES = ((1, 1), (2, 5), (5, 2), (7, 9), (13, 4))
"""Training and validation samples, with a global batch of 4."""


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    for way in WAYS:
        for train, val in SIZES:
            yield f"{way} uneven {train} {val}", partial(uneven, way, train, val)
        yield f"{way} odd accumulation", partial(odd_accumulation, way)
        yield f"{way} average", partial(average, way)
    for times in (2, 3) if RANKS == 1 else (RANKS,):
        yield f"stream alike {times}", partial(stream, "alike", "auto", times)
        yield f"stream dealt {times}", partial(stream, "alike", True, times)
        yield f"stream accumulated {times}", partial(stream, "alike", True, times, accumulate=2)
    yield "stream by rank", partial(stream, "by rank", False)
    yield "stream by rank auto", partial(stream, "by rank", "auto")
    yield "stream at rest", partial(stream, "by rank", "auto", rate=0.0)
    yield "stream validated", stream_validated


def uneven(way: str, train: int, val: int) -> dict[str, Any]:
    model = line()
    trainer = Curve(
        model, sgd(model), config(epochs=2, strategy=way), "mse", metrics={"target": mean_target}
    )
    trainer.fit(DataLoader(points(train), 4, shuffle=True), DataLoader(points(val), 4))
    test = trainer.test(DataLoader(points(val + 1), 3))
    outputs = trainer.predict(DataLoader(points(train + 2), 3))
    return {
        "losses": trainer.losses, "val": trainer.validated, "weights": weights(trainer),
        "test": [test["test_loss"], test["test_target"]], "steps": trainer.step,
        "metric": trainer.metrics["train_target"], "predict": outputs.flatten().tolist(),
    }  # fmt: skip


def odd_accumulation(way: str) -> dict[str, Any]:
    """11 samples in batches of 4 (4, 4, 3), two to a step: the last window has one batch."""
    model = line()
    trainer = Curve(
        model, sgd(model), config(epochs=2, accumulate=2, clip_norm=0.3, strategy=way), "mse"
    )
    trainer.fit(DataLoader(points(11), 4, shuffle=True))
    return {"losses": trainer.losses, "weights": weights(trainer), "steps": trainer.step}


def average(way: str) -> dict[str, Any]:
    """Validation in the middle of an epoch, with the averaged weights, disturbs nothing."""
    model = line()
    trainer = Curve(model, sgd(model), config(epochs=2, ema=0.7, val_every_steps=2, strategy=way))
    trainer.fit(DataLoader(points(21), 4, shuffle=True), DataLoader(points(5), 4))
    with trainer.averaged():
        averaged = trainer.test(DataLoader(points(9), 4))["test_loss"]
    return {
        "losses": trainer.losses, "val": trainer.validated, "weights": weights(trainer),
        "averaged": averaged, "test": trainer.test(DataLoader(points(9), 4))["test_loss"],
    }  # fmt: skip


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Samples one after the other; ``by rank`` every rank reads only its own, unevenly many."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is None
        rank = dist.get_rank() if dist.is_initialized() else 0
        for number, sample in enumerate(points(self.count)):
            # Rank 0 takes the first 11 samples, rank 1 the next 3, rank 2 the rest.
            owner = 0 if number < 11 else 1 if number < 14 or RANKS == 2 else 2
            if self.kind == "alike" or RANKS == 1 or owner == rank:
                yield sample


def stream(
    kind: str, shard: str | bool, times: int = 1, rate: float = 0.05, **fields: Any
) -> dict[str, Any]:
    """Batches of 2 on each rank. One rank alone takes ``times`` as much: what they have together."""
    seen: list[float] = []

    def loss(model: nn.Module, batch: Any) -> Any:
        seen.extend(batch[0][:, 0].tolist())
        return (model(batch[0]) - batch[1]).square().mean()

    model = line()
    settings = config(epochs=2, shard_iterable=shard, batch_size_is="per_rank", **fields)
    trainer = Curve(model, sgd(model, rate), settings, loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(DataLoader(Stream(kind, 17), 2 * times if RANKS == 1 else 2))
    return {
        "seen": seen, "losses": trainer.losses, "loss": trainer.metrics["train_loss"],
        "weights": weights(trainer), "steps": trainer.step, "epochs": trainer.epoch,
    }  # fmt: skip


def stream_validated() -> dict[str, Any]:
    """Means over a stream that is shared out unevenly, and predictions in its order."""
    model = line()
    trainer = Curve(model, sgd(model), config(batch_size_is="per_rank"), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = trainer.test(DataLoader(Stream("alike", 17), 2))["test_loss"]
        outputs = trainer.predict(DataLoader(Stream("alike", 17), 2))
    return {"test": test, "predict": outputs.flatten().tolist()}
