"""What surrounds the steps: stopping, the banner, logs, several Trainers and several fits."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ranks_script import RANKS, WAYS, Curve, config, line, points, sgd, weights
from torch.utils.data import DataLoader

from allranks import Trainer, world
from allranks.train.callbacks import Callback, When


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    for way in WAYS:
        yield f"{way} early stopping", partial(early_stopping, way)
    yield "max_steps", partial(ended, epochs=9, max_steps=7)
    yield "max_time", partial(ended, max_time="1s", log_every=5)
    yield "stop on the last rank", partial(stopped_by, RANKS - 1, 7)
    yield "stop on the first rank", partial(stopped_by, 0, 7)
    yield "stop at an epoch's end", stopped_at_epoch_end
    yield "banner", banner
    yield "two trainers", two_trainers
    yield "fit twice", fit_twice
    yield "rate after two fits", rate_after_two_fits
    yield "test before fit", test_before_fit
    yield "hooks", hooks
    yield "log of steps", log_of_steps
    yield "run folders", run_folders
    yield "a metric that ranks see differently", watched_differently
    yield "other metrics on another rank", other_metrics
    yield "no checkpoint", partial(ended, resume="nowhere")
    yield "too many ranks", partial(ended, epochs=1, nprocs=RANKS + 5)


def early_stopping(way: str) -> dict[str, Any]:
    model = line()
    settings = config(epochs=30, patience=3, strategy=way)
    trainer = Curve(model, sgd(model, 0.0), settings)
    trainer.fit(DataLoader(points(9), 4), DataLoader(points(5), 4))
    return {"epoch": trainer.epoch, "reason": trainer.stop_reason, "val": trainer.validated}


def ended(**fields: Any) -> dict[str, Any]:
    model = line()
    trainer = Curve(model, sgd(model), config(**fields))
    trainer.fit(DataLoader(points(9), 4))
    return {"step": trainer.step, "epoch": trainer.epoch, "reason": trainer.stop_reason}


def stopped_by(rank: int, step: int) -> dict[str, Any]:
    """One rank says stop; log steps come every 5 steps, in epochs of 100."""
    model = line()
    asked = When(
        "step_end", lambda t: t.stop("enough"), condition=lambda t: t.step == step and is_rank(rank)
    )
    trainer = Curve(model, sgd(model), config(epochs=2, log_every=5), callbacks=[asked])
    trainer.fit(DataLoader(points(400), 4))
    return {"step": trainer.step, "reason": trainer.stop_reason, "losses": len(trainer.losses)}


def is_rank(rank: int) -> bool:
    return world().rank == rank


def stopped_at_epoch_end() -> dict[str, Any]:
    model = line()
    asked = When("epoch_end", lambda t: t.stop("enough"), condition=lambda _: is_rank(RANKS - 1))
    trainer = Curve(model, sgd(model), config(epochs=5), callbacks=[asked])
    trainer.fit(DataLoader(points(9), 4))
    return {"step": trainer.step, "epoch": trainer.epoch}


def banner() -> dict[str, Any]:
    """What is printed: on rank 0 alone."""
    texts = {}
    for kind in ("per_rank", "global"):
        model, text = line(), io.StringIO()
        settings = config(
            epochs=1, verbose=True, batch_size_is=kind, lr_scaling="linear", accumulate=2
        )
        with contextlib.redirect_stdout(text):
            Trainer(model, sgd(model, 0.01), settings).fit(DataLoader(points(25), 6))
        texts[kind] = text.getvalue()
    return texts


def two_trainers() -> dict[str, Any]:
    """One after the other, both alive, trained in turn; the second takes up the first's model."""
    model = line()
    first = Curve(model, sgd(model), config(epochs=1))
    first.fit(DataLoader(points(13), 4, shuffle=True))
    second = Curve(model, sgd(model, 0.01), config(epochs=2))
    second.fit(DataLoader(points(9), 4, shuffle=True))
    return {
        "first": first.losses, "second": second.losses, "weights": weights(second),
        "same": str(first.folder) == str(second.folder),
    }  # fmt: skip


def fit_twice() -> dict[str, Any]:
    model = line()
    trainer = Curve(model, sgd(model), config(epochs=2))
    trainer.fit(DataLoader(points(13), 4, shuffle=True), DataLoader(points(5), 4))
    first = trainer.losses
    trainer.fit(DataLoader(points(7), 4, shuffle=True))
    return {"first": first, "second": trainer.losses, "steps": trainer.step,
            "test": trainer.test(DataLoader(points(9), 4))["test_loss"]}  # fmt: skip


def rate_after_two_fits() -> float:
    """Scaled to the batch once: the second fit has the same batch."""
    model = line()
    optimizer = sgd(model, 0.01)
    trainer = Trainer(model, optimizer, config(epochs=1, lr_scaling="linear", accumulate=2))
    trainer.fit(DataLoader(points(13), 4))
    trainer.fit(DataLoader(points(13), 4))
    return float(optimizer.param_groups[0]["lr"])


def test_before_fit() -> dict[str, Any]:
    model = line()
    trainer = Curve(model, sgd(model), config(epochs=1))
    before = trainer.test(DataLoader(points(9), 4))["test_loss"]
    outputs = trainer.predict(DataLoader(points(5), 4)).flatten().tolist()
    trainer.fit(DataLoader(points(13), 4, shuffle=True), DataLoader(points(5), 4))
    after = trainer.test(DataLoader(points(9), 4))["test_loss"]
    val = trainer.validate(DataLoader(points(5), 4))["val_loss"]
    return {
        "before": before, "predict": outputs, "losses": trainer.losses, "after": after,
        "val": [trainer.validated[0], val],
    }  # fmt: skip


def hooks() -> list[str]:
    """Every hook runs on every rank, in the same order: a collective inside one may not hang."""
    heard: list[str] = []

    class Ears(Callback):
        pass

    def note(event: str) -> Callable[..., None]:
        def hook(self: Any, trainer: Any, *_: Any) -> None:
            heard.append(event)

        return hook

    events = ("fit_start", "epoch_start", "log", "val_start", "val_end", "checkpoint", "epoch_end",
              "fit_end", "test_start", "test_end", "before_step", "step_end")  # fmt: skip
    for event in events:
        setattr(Ears, f"on_{event}", note(event))
    model = line()
    settings = config(
        epochs=1,
        checkpoint=True,
        checkpoint_every_steps=2,
        checkpoint_async=False,
    )
    trainer = Trainer(model, sgd(model), settings, callbacks=[Ears()])
    trainer.fit(DataLoader(points(13), 4), DataLoader(points(5), 4))
    trainer.test(DataLoader(points(5), 4))
    return heard


def log_of_steps() -> dict[str, Any]:
    model = line()
    settings = config(epochs=2, log_every=2, name="logged", checkpoint=True)
    trainer = Trainer(model, sgd(model), settings)
    trainer.fit(DataLoader(points(25), 4), DataLoader(points(5), 4))
    if dist.is_initialized():
        dist.barrier()
    lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").open()]
    return {
        "train": [line["step"] for line in lines if line["kind"] == "train"],
        "val": [line["epoch"] for line in lines if line["kind"] == "val"],
        "epoch": [line["epoch"] for line in lines if line["kind"] == "epoch"],
        "loggers": len(trainer.loggers),
    }  # fmt: skip


def run_folders() -> list[str]:
    """Of all the Trainers of this script: one, and the one that was given a name."""
    if dist.is_initialized():
        dist.barrier()
    return sorted(path.name.rpartition("-")[0] for path in Path("runs").iterdir())


def watched_differently() -> dict[str, Any]:
    """Each rank logs a value of its own; the decision must be one."""
    model = line()
    own = When("epoch_end", lambda t: t.log("own", t.epoch if is_rank(0) else -t.epoch))
    settings = config(epochs=9, patience=2, monitor="own")
    trainer = Trainer(model, sgd(model), settings, callbacks=[own])
    trainer.fit(DataLoader(points(9), 4))
    return {"epoch": trainer.epoch, "reason": trainer.stop_reason}


def other_metrics() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        loss = (model(batch[0]) - batch[1]).square().mean()
        return loss, {f"of_rank_{world().rank}": loss}

    model = line()
    Trainer(model, sgd(model), config(epochs=1), loss_fn=loss_fn).fit(DataLoader(points(9), 4))
