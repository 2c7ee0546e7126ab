"""The user's own loop with `prepare`, beside the Trainer that it must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from ranks_script import RANKS, WAYS, Curve, config, flat, line, points, sgd, weights
from torch import nn
from torch.utils.data import DataLoader

from allranks import prepare

HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "clipped": {"clip_norm": 0.2},
    "all": {"accumulate": 2, "clip_norm": 0.2, "clip_value": 0.1, "warmup_steps": 3},
}


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    for way in WAYS:
        for name, fields in HOW.items():
            yield f"{way} trainer {name}", partial(by_trainer, way, fields)
            yield f"{way} loop {name}", partial(by_hand, way, fields)
    yield "evaluation", evaluation
    yield "bf16", bf16
    yield "left early", left_early
    yield "without its loader", without_loader
    yield "pieces", pieces


def by_trainer(way: str, fields: dict[str, Any]) -> dict[str, Any]:
    model = line()
    trainer = Curve(model, sgd(model), config(epochs=3, strategy=way, **fields), "mse")
    trainer.fit(DataLoader(points(21), 4, shuffle=True))
    return {"weights": weights(trainer), "steps": trainer.step}


def by_hand(way: str, fields: dict[str, Any]) -> dict[str, Any]:
    model = line()
    optimizer = sgd(model)
    model, optimizer, loader = prepared = prepare(
        model, optimizer, DataLoader(points(21), 4, shuffle=True),
        config=config(strategy=way, **fields),
    )  # fmt: skip
    steps = 0
    for _ in range(3):
        for x, y in loader:
            prepared.backward((model(x) - y).square().mean())
            steps += prepared.step()
    return {"weights": flat(prepared.state_dict()), "steps": steps}


def evaluation() -> dict[str, Any]:
    """Loaders after the first are for evaluation: each sample once, in order."""
    model = line()
    objects = model, sgd(model), DataLoader(points(13), 4), DataLoader(points(7), 4)
    model, _, loader, test = prepared = prepare(*objects, config=config())
    total = torch.zeros(2, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for x, y in test:
            count = len(x) if test.count is None else test.count
            wrong = (model(x) - y).square()[:count].sum()
            total += torch.tensor([float(wrong), count], dtype=torch.float64)
    means = [prepared.mean(value) * prepared.world.size for value in total]
    return {"loss": means[0] / means[1], "samples": means[1], "lengths": [len(loader), len(test)]}


def bf16() -> dict[str, Any]:
    model = line()
    model, _, loader = prepared = prepare(
        model, sgd(model), DataLoader(points(21), 4), config=config(precision="bf16", dtype=None)
    )
    outputs = set()
    for x, y in loader:
        output = model(x)
        outputs.add(str(output.dtype))
        prepared.backward((output.float() - y).square().mean())
        prepared.step()
    kept = {str(value.dtype) for value in prepared.state_dict().values()}
    return {"outputs": sorted(outputs), "weights": sorted(kept)}


def left_early() -> dict[str, Any]:
    """A loop that breaks in the middle of a window of two starts the next epoch afresh."""
    model = line()
    model, _, loader = prepared = prepare(
        model, sgd(model), DataLoader(points(16), 4), config=config(accumulate=2)
    )
    stepped: list[list[bool]] = []
    for most in (3, 4):
        stepped.append([])
        for number, (x, y) in enumerate(loader, 1):
            prepared.backward((model(x) - y).square().mean())
            stepped[-1].append(prepared.step())
            if number == most:
                break
    return {"stepped": stepped}


def without_loader() -> str:
    """Batches that come from elsewhere weigh as they are."""
    model = line()
    model, _, _ = prepared = prepare(model, sgd(model), DataLoader(points(16), 4), config=config())
    x, y = (tensor.double() for tensor in points(4).tensors)
    prepared.backward((model(x) - y).square().mean())
    return str(prepared.step())


def pieces() -> dict[str, Any]:
    """What is prepared is used as what was given: names, attributes, order."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.note = nn.Linear(2, 1), "mine"

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    model = Named()
    loader, prepared_model, optimizer = prepared = prepare(
        DataLoader(points(7), 4), model, sgd(model), config=config()
    )
    return {
        "names": [sorted(prepared_model.state_dict()), sorted(prepared.state_dict())],
        "note": prepared_model.note, "length": len(loader), "size": prepared.world.size == RANKS,
        "optimizer": type(optimizer).__name__,
    }  # fmt: skip
