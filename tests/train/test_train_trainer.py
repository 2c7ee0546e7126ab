"""The Trainer in one process: what it takes and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402
from trainer_rig import endless, line, points, quiet  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.train.callbacks import When  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


def test_fit_returns_the_trained_model_and_optimizer() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=30), loss_fn="mse")
    got = trainer.fit(DataLoader(points(), 8, shuffle=True))
    assert got == (model, optimizer)
    assert model.weight.item() == pytest.approx(3, abs=0.05)
    assert model.bias.item() == pytest.approx(0.5, abs=0.05)
    assert trainer.step == 30 * 5
    assert trainer.epoch == 30


def test_max_iter_counts_epochs_exactly() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(max_iter=3))
    trainer.fit(DataLoader(points(), 8))
    assert trainer.current_epoch == 3
    assert trainer.global_step == 15


def test_max_steps_ends_inside_an_epoch_and_spans_epochs() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(max_steps=13))
    trainer.fit(DataLoader(points(), 8))
    assert (trainer.step, trainer.epoch) == (13, 3)


def test_max_time_ends(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(max_time="1s", log_every=1, print_every=0))
    trainer.fit(DataLoader(points(), 8))
    assert "max_time=1s is over" in capsys.readouterr().out


LOADER_KINDS = {
    "tuples": lambda: DataLoader(points(), 8, shuffle=True),
    "dicts": lambda: DataLoader([{"x": x, "y": y} for x, y in points()], 8, shuffle=True),
    "a list of batches": lambda: [(x[None], y[None]) for x, y in points()],
}


@pytest.mark.parametrize("kind", LOADER_KINDS)
def test_own_loss_functions_take_any_batch(kind: str) -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        error = (model(x) - y).square().mean()
        return error, {"error": error.sqrt()}

    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=10), loss_fn=loss)
    trainer.fit(LOADER_KINDS[kind]())
    assert trainer.metrics["train_loss"] < 0.1
    assert "train_error" in trainer.metrics


@dataclass
class Pair:
    x: Any
    y: Any


def test_dataclass_batches_and_the_other_order_of_parameters() -> None:
    def collate(rows: list[Any]) -> Pair:
        return Pair(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))

    model, optimizer = line()
    trainer = Trainer(
        model, optimizer, quiet(epochs=10),
        loss_fn=lambda batch, model: (model(batch.x) - batch.y).square().mean(),
    )  # fmt: skip
    trainer.fit(DataLoader(points(), 8, shuffle=True, collate_fn=collate))
    assert trainer.metrics["train_loss"] < 0.1


def test_a_model_that_returns_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, x: Any, y: Any) -> dict[str, Any]:
            return {"loss": (self.inner(x) - y).square().mean()}

    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, quiet(epochs=10), loss_fn=None)
    rows = [{"x": x, "y": y} for x, y in points()]
    trainer.fit(DataLoader(rows, 8, shuffle=True))
    assert trainer.metrics["train_loss"] < 0.1


def test_iterable_datasets() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            yield from points(37)

    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=10, accumulate=2))
    trainer.fit(DataLoader(Stream(), 8))
    assert trainer.step == 10 * 3  # 5 batches: two windows of 2 and one of 1
    assert trainer.metrics["train_loss"] < 0.3


def test_metrics_are_means_over_samples_not_batches() -> None:
    model, optimizer = line()
    data = points(10)
    trainer = Trainer(
        model, optimizer, quiet(epochs=1),
        metrics={"mean_target": lambda output, target: target.mean()},
    )  # fmt: skip
    values = trainer.test(DataLoader(data, 4))  # batches of 4, 4 and 2
    x, y = data.tensors
    assert values["test_mean_target"] == pytest.approx(y.mean().item())
    with torch.no_grad():
        assert values["test_loss"] == pytest.approx((model(x) - y).square().mean().item())


def test_predict_keeps_the_order_and_the_mode() -> None:
    model, optimizer = line()
    model.train()
    x, _ = points(11).tensors
    got = Trainer(model, optimizer, quiet()).predict(DataLoader(TensorDataset(x), 4))
    with torch.no_grad():
        assert torch.allclose(got, model(x))
    assert model.training


def test_early_stopping_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = line()
    optimizer.param_groups[0]["lr"] = 0.0
    config = quiet(epochs=50, patience=3, print_every=0)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    assert trainer.epoch == 4
    assert "val_loss" in trainer.stop_reason
    assert trainer.stop_reason in capsys.readouterr().out


def test_stop_from_a_callback_ends_after_that_step() -> None:
    model, optimizer = line()
    stop = When("step_end", lambda trainer: trainer.stop("enough"), condition=lambda t: t.step == 7)
    trainer = Trainer(model, optimizer, quiet(epochs=9), callbacks=[stop])
    trainer.fit(DataLoader(points(), 8))
    assert trainer.step == 7
    assert trainer.stop_reason == "enough"


def test_bf16_on_the_cpu_trains_and_keeps_fp32_weights() -> None:
    model, optimizer = line()
    Trainer(model, optimizer, quiet(epochs=20, precision="bf16")).fit(
        DataLoader(points(), 8, shuffle=True)
    )
    assert model.weight.dtype == torch.float32
    assert model.weight.item() == pytest.approx(3, abs=0.2)


def test_integer_targets_stay_integers_when_floats_are_converted() -> None:
    x = torch.randn(32, 4)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, quiet(dtype=torch.float64), loss_fn="cross_entropy")
    trainer.fit(DataLoader(TensorDataset(x, torch.randint(0, 3, (32,))), 8))
    assert model.weight.dtype == torch.float64


def test_a_criterion_with_weights_of_its_own_is_trained_and_moved() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.register_buffer("shift", torch.zeros(()))

        def forward(self, output: Any, target: Any) -> Any:
            return (output - target - self.shift).square().mean() + (self.scale - 2).square()

    model, _ = line()
    criterion = Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    config = quiet(epochs=20, dtype=torch.float64)
    trainer = Trainer(model, optimizer, config, loss_fn=criterion)
    trainer.fit(DataLoader(points(), 8, shuffle=True))
    assert criterion.scale.item() == pytest.approx(2, abs=1e-3)
    assert criterion.shift.dtype == torch.float64


def test_endless_data_with_a_number_of_steps() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(max_steps=12))
    trainer.fit(endless())
    assert trainer.step == 12
