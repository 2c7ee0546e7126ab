"""What a training leaves behind: checkpoints, metrics, settings; and going on from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import line, points, quiet  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.train.callbacks import Callback, When  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


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
