"""Ways of stepping, and what changes the rate or the weights around a step."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from trainer_rig import line, points, quiet  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.optimize_step import optimize_step  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


def test_schedulers_per_step_and_per_epoch() -> None:
    for every, expected in (("step", 0.5**10), ("epoch", 0.5**2)):
        model, optimizer = line()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        config = quiet(epochs=2, scheduler_every=every)
        Trainer(model, optimizer, config, scheduler=scheduler).fit(DataLoader(points(), 8))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * expected)


def test_reduce_on_plateau_is_given_the_monitored_metric() -> None:
    model, optimizer = line()
    optimizer.param_groups[0]["lr"] = 1e-6
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
    config = quiet(epochs=3, scheduler_every="epoch")
    Trainer(model, optimizer, config, scheduler=plateau).fit(
        DataLoader(points(), 8), DataLoader(points(), 8)
    )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-8)


def test_warmup_scales_the_first_steps_and_leaves_the_rate_alone() -> None:
    model, optimizer = line()
    rates: list[float] = []

    class Spy(Callback):
        def on_log(self, trainer: Any, values: dict[str, float]) -> None:
            if "lr" in values:
                rates.append(values["lr"])

    config = quiet(epochs=2, warmup_steps=4, log_every=1)
    Trainer(model, optimizer, config, callbacks=[Spy()]).fit(DataLoader(points(), 8))
    assert rates[:5] == pytest.approx([0.1 * k / 5 for k in (2, 3, 4, 5, 5)])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_learning_rate_scaling_counts_accumulation() -> None:
    for how, factor in (("linear", 4), ("sqrt", 2), ("none", 1)):
        model, optimizer = line()
        config = quiet(epochs=1, accumulate=4, lr_scaling=how)
        trainer = Trainer(model, optimizer, config)
        trainer.fit(DataLoader(points(), 8))
        trainer.fit(DataLoader(points(), 8))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)


def test_clipping_bounds_the_update() -> None:
    model, optimizer = line()
    before = model.weight.item(), model.bias.item()
    config = quiet(max_steps=1, clip_norm=1e-3, log_every=1)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8))
    moved = math.hypot(model.weight.item() - before[0], model.bias.item() - before[1])
    assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert trainer.metrics["grad_norm"] > 1e-3


def test_the_average_is_validated_and_follows_slowly() -> None:
    model, optimizer = line()
    config = quiet(epochs=3, ema=0.9)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    live = model.weight.item()
    with trainer.averaged():
        average = model.weight.item()
        assert trainer.test(DataLoader(points(), 8))["test_loss"] == pytest.approx(
            trainer.metrics["val_loss"]
        )
    assert model.weight.item() == live
    assert average < live


def test_two_optimizers_and_own_steps() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in model.items()}

    def both(model: Any, batch: Any, step: Any) -> dict[str, Any]:
        x, y = batch
        losses = {}
        for name, sign in (("a", 1), ("b", -1)):
            losses[name] = (model[name](x) - sign * y).square().mean()
            step.backward(losses[name])
            step.update(name)
        return losses

    class Manual(Trainer):
        training_step = staticmethod(both)

    trainer = Manual(model, optimizers, quiet(epochs=30))
    trainer.fit(DataLoader(points(), 8, shuffle=True))
    assert model["a"].weight.item() == pytest.approx(3, abs=0.1)
    assert model["b"].weight.item() == pytest.approx(-3, abs=0.1)
    assert {"train_a", "train_b", "lr_a", "lr_b"} <= trainer.metrics.keys()


def test_a_subclass_with_its_own_step_and_hooks() -> None:
    class Mine(Trainer):
        epochs_seen = 0

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            x, y = batch
            return (model(x) - y).abs().mean()

        def on_epoch_end(self, trainer: Trainer) -> None:
            self.epochs_seen += 1

    model, optimizer = line()
    trainer = Mine(model, optimizer, quiet(epochs=4))
    trainer.fit(DataLoader(points(), 8))
    assert trainer.epochs_seen == 4


def test_own_optimize_step() -> None:
    calls = []

    def mine(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
        calls.append(1)
        return optimize_step(model, optimizer, loss_fn, batch)

    model, optimizer = line()
    Trainer(model, optimizer, quiet(epochs=10), loss_fn="mse", optimize_step=mine).fit(
        DataLoader(points(), 8, shuffle=True)
    )
    assert len(calls) == 50
    assert model.weight.item() == pytest.approx(3, abs=0.3)


class Asking:
    """A gradient-free optimizer as nevergrad's are: random steps, the best is kept."""

    def __init__(self, size: int) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self.best, self.loss = torch.zeros(size), float("inf")

    def ask(self) -> Any:
        step = 0.3 * torch.randn(self.best.shape, generator=self._generator)
        return type("Candidate", (), {"value": (self.best + step).numpy()})

    def tell(self, candidate: Any, loss: float) -> None:
        if loss < self.loss:
            self.best, self.loss = torch.as_tensor(candidate.value), loss


def test_training_without_gradients() -> None:
    model, optimizer = line()
    asking = Asking(2)
    trainer = Trainer(model, optimizer, quiet(epochs=300))
    with trainer.disable_grad_opt(asking):
        trainer.fit(DataLoader(points(), 40))
    assert asking.loss < 0.05
    with torch.no_grad():
        x, y = points().tensors
        assert (model(x) - y).square().mean().item() == pytest.approx(asking.loss, rel=1e-4)
    assert trainer.optimizer is optimizer
    with pytest.raises(UsageError, match="trains without gradients"):
        Trainer(model, asking, quiet()).fit(DataLoader(points(), 8))


def test_an_optimizer_that_wants_a_closure() -> None:
    model, _ = line()
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    Trainer(model, optimizer, quiet(epochs=2)).fit(DataLoader(points(), 40))
    assert model.weight.item() == pytest.approx(3, abs=1e-3)
    with pytest.raises(UsageError, match="accumulate=2 does not work with it"):
        Trainer(model, optimizer, quiet(accumulate=2)).fit(DataLoader(points(), 8))


@pytest.mark.parametrize("own", ["training_step", "optimize_step"])
def test_own_steps_compute_in_the_precision_that_was_asked_for(own: str) -> None:
    seen: list[Any] = []

    def manual(model: Any, batch: Any, step: Any) -> Any:
        output = model(batch[0])
        seen.append(output.dtype)
        loss = (output.float() - batch[1]).square().mean()
        step.backward(loss)
        step.update("0")
        return loss

    def custom(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
        seen.append(model(batch[0]).dtype)
        return optimize_step(model, optimizer, loss_fn, batch)

    model, optimizer = line()

    class Manual(Trainer):
        training_step = staticmethod(manual)

    kind = Manual if own == "training_step" else partial(Trainer, optimize_step=custom)
    kind(model, optimizer, quiet(precision="bf16")).fit(DataLoader(points(), 8))
    assert set(seen) == {torch.bfloat16}


def test_sparse_gradients_are_stepped_without_fused_kernels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 1, sparse=True), nn.Flatten(0))
    data = TensorDataset(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = Trainer(model, optimizer, quiet(epochs=40))
    trainer.fit(DataLoader(data, 2))
    assert trainer.metrics["train_loss"] < 1e-3
