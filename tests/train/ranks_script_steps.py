"""Trainings whose steps are the user's: several optimizers, an own step, no gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from ranks_script import WAYS, Curve, config, line, points, sgd, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    for way in WAYS:
        yield f"{way} two optimizers", partial(two_optimizers, way)
        yield f"{way} two optimizers clipped", partial(two_optimizers, way, clip_norm=0.1)
        yield f"{way} own step", partial(own_step, way, 16)
        yield f"{way} loss with parameters", partial(loss_with_parameters, way)
    yield "own step uneven", partial(own_step, WAYS[0], 7)
    yield "gradient-free", gradient_free
    yield "loss with weights", loss_with_weights
    yield "warm-up and schedule", scheduled


class Pair(nn.Module):
    """A generator and a critic."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.maker, self.critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    def forward(self, x: Any) -> Any:
        return self.critic(self.maker(x))


def two_optimizers(way: str, **fields: Any) -> dict[str, Any]:
    def both(model: Any, batch: Any, step: Any) -> Any:
        critic = (model(batch[0]) - batch[1]).square().mean()
        step.backward(critic)
        step.update("critic")
        maker = model(batch[0]).square().mean() + critic.detach()
        step.backward(maker)
        step.update("maker")
        return {"loss": critic, "maker": maker}

    model = Pair()
    optimizers = {
        "critic": torch.optim.SGD(model.critic.parameters(), lr=0.05),
        "maker": torch.optim.Adam(model.maker.parameters(), lr=0.05),
    }

    class Manual(Curve):
        training_step = staticmethod(both)

    trainer = Manual(model, optimizers, config(epochs=2, strategy=way, **fields))
    trainer.fit(DataLoader(points(13), 4, shuffle=True))
    return {
        "loss": trainer.metrics["train_loss"], "maker": trainer.metrics["train_maker"],
        "weights": weights(trainer), "steps": trainer.step,
    }  # fmt: skip


def own_step(way: str, samples: int) -> dict[str, Any]:
    """The user's optimize_step knows nothing of ranks, nor of how much its batch counts."""

    def step(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(batch[0]) - batch[1]).square().mean()
        loss.backward()
        optimizer.step()
        return loss, {"twice": 2 * loss.detach()}

    model = line()
    trainer = Curve(
        model, sgd(model), config(epochs=2, strategy=way), loss_fn="mse", optimize_step=step
    )
    trainer.fit(DataLoader(points(samples), 4, shuffle=True))
    own = [] if way == "fsdp" else nn.utils.parameters_to_vector(model.parameters()).tolist()
    return {
        "losses": trainer.losses, "weights": weights(trainer), "own": own,
        "twice": trainer.metrics["train_twice"],
    }  # fmt: skip


class Asking:
    """Gradient-free in nevergrad's way: a fixed list of candidates; remembers what it was told."""

    def __init__(self, many: int) -> None:
        self.generator = torch.Generator().manual_seed(4)
        self.many, self.told = many, []

    def ask(self) -> Any:
        return SimpleNamespace(value=torch.randn(self.many, generator=self.generator).numpy())

    def tell(self, candidate: Any, loss: float) -> None:
        self.told.append(loss)


def gradient_free() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    asking = Asking(3)
    trainer = Curve(model, None, config(epochs=2), "mse")
    with trainer.disable_grad_opt(asking):
        trainer.fit(DataLoader(points(13), 4, shuffle=True))
        own = nn.utils.parameters_to_vector(model.parameters()).tolist()
        return {"told": asking.told, "own": own, "loss": trainer.metrics["train_loss"]}


class Weighted(nn.Module):
    """A criterion that is trained too."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, output: Any, target: Any) -> Any:
        return ((output - target).square() * torch.exp(-self.log_scale) + self.log_scale).mean()


def loss_with_parameters(way: str) -> dict[str, Any]:
    model, loss = line(), Weighted().double()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05)
    trainer = Curve(model, optimizer, config(epochs=2, strategy=way), loss)
    trainer.fit(DataLoader(points(13), 4, shuffle=True), DataLoader(points(5), 4))
    test = trainer.test(DataLoader(points(9), 4))["test_loss"]
    return {"losses": trainer.losses, "val": trainer.validated, "test": test}


def loss_with_weights() -> list[float]:
    """A criterion's tensors are converted with the model and the data."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    inputs = points(13).tensors[0]
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    trainer = Curve(model, sgd(model), config(epochs=1), loss)
    trainer.fit(DataLoader(data, 4, shuffle=True))
    return trainer.losses


def scheduled() -> dict[str, Any]:
    model = line()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    rates: list[float] = []

    class Rates(Curve):
        def on_log(self, trainer: Any, values: Any) -> None:
            if "lr" in values:
                rates.append(values["lr"])

    settings = config(epochs=2, warmup_steps=3, accumulate=2)
    Rates(model, optimizer, settings, "mse", scheduler=scheduler).fit(
        DataLoader(points(13), 4, shuffle=True)
    )
    return {"rates": rates, "last": optimizer.param_groups[0]["lr"]}
