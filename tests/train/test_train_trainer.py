"""The Trainer in one process: what it takes, what it gives, and what it says."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from allranks import TrainConfig, Trainer, prepare  # noqa: E402
from allranks.data import to_dataloader  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.optimize_step import optimize_step  # noqa: E402
from allranks.train.callbacks import Callback, When  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("allranks.train.folder._own", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)


def quiet(**fields: Any) -> TrainConfig:
    fields = {"seed": 1, "verbose": False, "summary": False, "progress": False, **fields}
    return TrainConfig(**fields)


def line(inputs: int = 1) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Linear(inputs, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def points(n: int = 40) -> TensorDataset:
    x = torch.linspace(-1, 1, n).reshape(-1, 1)
    return TensorDataset(x, 3 * x + 0.5)


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

    config = quiet(epochs=2, warmup_steps=4, log_every=1, callbacks=[Spy()])
    Trainer(model, optimizer, config).fit(DataLoader(points(), 8))
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

    trainer = Trainer(model, optimizers, quiet(epochs=30), training_step=both)
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


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_training_equals_one_that_was_never_interrupted(accumulate: int) -> None:
    def train(**fields: Any) -> tuple[nn.Module, Trainer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.1), nn.Linear(8, 1)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        config = quiet(dtype=torch.float64, ema=0.9, accumulate=accumulate, **fields)
        trainer = Trainer(model, optimizer, config, scheduler=scheduler)
        trainer.fit(DataLoader(points(), 4, shuffle=True))
        return model, trainer

    whole, _ = train(epochs=3, name="whole")
    _, part = train(epochs=3, max_steps=7, name="part")  # in the middle of an epoch
    resumed, _ = train(epochs=3, name="rest", resume=str(part.folder))
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_checkpoints_kept_and_the_best() -> None:
    model, optimizer = line()
    config = quiet(epochs=6, checkpoint_every=1, checkpoint_keep=2)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    names = {path.name for path in (trainer.folder / "checkpoints").iterdir()}
    assert names == {"epoch-5.pt", "epoch-6.pt", "best.pt", "last.pt"}
    best = torch.load(trainer.folder / "checkpoints" / "best.pt", weights_only=True)
    assert best["progress"]["epoch"] == 6


def test_the_metrics_file_has_every_kind() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=2, log_every=2))
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    trainer.test(DataLoader(points(), 8))
    lines = [
        json.loads(text) for text in (trainer.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [each["kind"] for each in lines if each["epoch"] == 1] == [
        "train", "train", "train", "epoch", "val",
    ]  # fmt: skip
    assert lines[-1]["kind"] == "test"
    steps = [each["step"] for each in lines if each["kind"] == "train"]
    assert steps == [2, 4, 5, 6, 8, 10]


def test_a_failing_step_is_told_to_callbacks_and_leaves_no_bar() -> None:
    seen: list[BaseException] = []

    class Ears(Callback):
        def on_exception(self, trainer: Any, error: BaseException) -> None:
            seen.append(error)

    def broken(model: Any, batch: Any) -> Any:
        raise RuntimeError("a mistake")

    model, optimizer = line()
    with pytest.raises(RuntimeError, match="a mistake"):
        Trainer(model, optimizer, quiet(callbacks=[Ears()]), loss_fn=broken).fit(
            DataLoader(points(), 8)
        )
    assert [str(error) for error in seen] == ["a mistake"]


def test_a_loss_that_is_not_a_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = line()
    optimizer.param_groups[0]["lr"] = 1e30
    Trainer(model, optimizer, quiet(epochs=2, log_every=1)).fit(DataLoader(points(), 8))
    out = capsys.readouterr().out
    assert out.count("WARNING: the loss is") == 1


def test_stop_from_a_callback_ends_after_that_step() -> None:
    model, optimizer = line()
    stop = When("step_end", lambda trainer: trainer.stop("enough"), condition=lambda t: t.step == 7)
    trainer = Trainer(model, optimizer, quiet(epochs=9, callbacks=[stop]))
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


def test_what_is_logged_last_is_written_and_checkpoints_are_heard_of() -> None:
    heard: list[int] = []

    class Ears(Callback):
        def on_epoch_end(self, trainer: Any) -> None:
            trainer.log("mine", trainer.epoch)

        def on_checkpoint(self, trainer: Any) -> None:
            heard.append(trainer.step)

    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=2, callbacks=[Ears()]))
    trainer.fit(DataLoader(points(), 8))
    lines = [json.loads(row) for row in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["mine"] for row in lines if "mine" in row] == [1, 2]
    assert heard == [10]


def test_settings_are_written_down() -> None:
    model, optimizer = line()
    config = quiet(hyperparams={"width": 3, "path": Path("x")})
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8))
    written = json.loads((trainer.folder / "training.json").read_text())
    assert written["hyperparams"] == {"width": 3, "path": "x"}
    assert written["seed"] == 1


def test_a_torn_line_of_a_killed_run_hinders_nothing() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(epochs=2))
    trainer.fit(DataLoader(points(), 8))
    with open(trainer.folder / "metrics.jsonl", "a") as file:
        file.write('{"time": 17')
    trainer.fit(DataLoader(points(), 8))
    assert (trainer.folder / "curve.svg").read_text().count("<polyline") == 1


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
    step = manual if own == "training_step" else custom
    Trainer(model, optimizer, quiet(precision="bf16"), **{own: step}).fit(DataLoader(points(), 8))
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("error", [OSError(28, "No space left"), RuntimeError("unexpected pos")])
def test_a_full_disk_costs_a_warning_and_not_the_training(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    heard: list[int] = []
    model, optimizer = line()
    ears = When("checkpoint", lambda trainer: heard.append(trainer.step))
    config = quiet(epochs=2, checkpoint_every=1, callbacks=[ears])
    trainer = Trainer(model, optimizer, config)
    monkeypatch.setattr(torch, "save", full)
    trainer.fit(DataLoader(points(), 8))
    assert trainer.step == 10
    assert capsys.readouterr().out.count("could not be written") == 3
    assert heard == []
    assert list((trainer.folder / "checkpoints").iterdir()) == []


def test_no_checkpoints_means_none() -> None:
    model, optimizer = line()
    config = quiet(epochs=2, checkpoint=False, checkpoint_every=1, checkpoint_every_steps=2)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    assert not (trainer.folder / "checkpoints").exists()


def test_a_resumed_training_scales_the_rate_for_its_own_batch() -> None:
    def trained(batch: int, **fields: Any) -> Trainer:
        model, optimizer = line()
        config = quiet(lr_scaling="linear", lr_base_batch=8, **fields)
        trainer = Trainer(model, optimizer, config)
        trainer.fit(DataLoader(points(), batch))
        return trainer

    first = trained(8, epochs=1)
    second = trained(16, epochs=2, name="second", resume=str(first.folder))
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    assert second.step > first.step


def test_states_of_callbacks_can_always_be_read_back() -> None:
    numpy = pytest.importorskip("numpy")

    class Counts(Callback):
        def __init__(self, value: Any) -> None:
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: Any) -> None:
            self.value = state["value"]

    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(callbacks=[Counts(numpy.float64(0.5))]))
    trainer.fit(DataLoader(points(), 8))
    again = Counts(None)
    config = quiet(callbacks=[again], epochs=2, name="again", resume=str(trainer.folder))
    Trainer(model, optimizer, config).fit(DataLoader(points(), 8))
    assert again.value == 0.5
    with pytest.raises(UsageError, match="The state of Counts holds a object"):
        Trainer(model, optimizer, quiet(callbacks=[Counts(object())])).fit(DataLoader(points(), 8))


def endless() -> Any:
    x, y = points().tensors
    return to_dataloader(x, y, batch_size=8, infinite=True)


def test_endless_data_with_a_number_of_steps() -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet(max_steps=12))
    trainer.fit(endless())
    assert trainer.step == 12


def plateau_per_step() -> None:
    model, optimizer = line()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    Trainer(model, optimizer, quiet(), scheduler=scheduler).fit(DataLoader(points(), 8))


MISTAKES: list[tuple[Any, str]] = [
    (lambda: TrainConfig(max_itr=3), "Did you mean 'max_iter'?"),
    (lambda: TrainConfig(precision="fp8"), "precision='fp8': must be one of fp32, tf32, bf16, fp16"),
    (lambda: TrainConfig(epochs=2, max_iter=3), "mean the same"),
    (lambda: TrainConfig(accumulate=0), "accumulate=0: must be at least 1"),
    (lambda: Trainer(*line(), quiet(), loss_fn="mean"), "loss_fn='mean' is not known"),
    (lambda: Trainer(*line(), quiet()).fit(), "There is no training data"),
    (lambda: Trainer(*line(), quiet()).test(), "There is no test data"),
    (lambda: Trainer(*line(), quiet(compute_setup="gpu")).fit([1]), "sees no GPU"),
    (lambda: Trainer(*line(), quiet(precision="fp16")).fit([1]), "precision='fp16' needs a GPU"),
    (lambda: Trainer(line()[0], None, quiet()).fit([1]), "There is no optimizer"),
    (lambda: Trainer(*line(), quiet()).fit(3), "The data is a int"),
    (lambda: Trainer(*line(), quiet(resume="nowhere")).fit([1]), "there is no checkpoint"),
    (lambda: TrainConfig(max_time="2 hrs"), "2 hrs"),
    (lambda: TrainConfig(epochs="3"), "epochs='3': must be a whole number"),
    (lambda: TrainConfig(accumulate=2.0), "accumulate=2.0: must be a whole number"),
    (lambda: TrainConfig(clip_norm=-1.0), "clip_norm=-1.0: must be at least 0"),
    (lambda: TrainConfig(compile="max-autotun"), "Did you mean 'max-autotune'?"),
    (lambda: Trainer(*line(), {"epochs": 3}), "The config is a dict"),
    (lambda: plateau_per_step(), "scheduler_every='epoch'"),
    (lambda: Trainer(*line(), quiet(patience=1, val_every=0)).fit(
        DataLoader(points(), 8), DataLoader(points(), 8)), "val_every=0 has none"),
    (lambda: Trainer(*line(), quiet(max_steps=3)).fit([]), "The training data gave no batch"),
    (lambda: Trainer(*line(), quiet(max_iter=3)).fit(endless()), "The training data never ends"),
    (lambda: Trainer(*line(), quiet(), loss_fn=lambda net, batch: net(batch[0])).fit([points()[:]]),
     "a parameter called `model`"),
    (lambda: Trainer(line()[0], line()[1], quiet()).fit([1]), "holds no parameter of this model"),
    (lambda: Trainer(*line(), quiet(patience=2, monitor="val_loss")).fit(DataLoader(points(), 8)),
     "is measured on validation data"),
    (lambda: Trainer(*line(), quiet(clip_norm=1.0), optimize_step=lambda *a: None).fit([1]),
     "clip_norm=1.0 does not work with it"),
    (lambda: prepare(*line(), ema=0.9), "prepare() does not use 'ema'"),
    (lambda: Trainer(lambda x: x, None), "not a torch.nn.Module"),
    (lambda: Trainer(line()[0], "adam", quiet()).fit([1]), "Optimizer 0 is a str"),
    (lambda: Trainer(*line(), quiet(loggers=["tensorbord"])).fit(DataLoader(points(), 8)), "tensorboard"),
    (lambda: Trainer(*line(), quiet()).fit([torch.ones(3, 1)]), "needs (inputs, target)"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistakes_are_told(mistake: Any, message: str) -> None:
    if torch.cuda.is_available() and "GPU" in message:
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError) as caught:
        mistake()
    assert message in str(caught.value)
