"""What a training leaves behind: checkpoints, metrics, settings; and going on from them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import line, points, quiet  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.train.callbacks import Callback, When  # noqa: E402
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


def test_checkpoints_kept_and_the_best() -> None:
    model, optimizer = line()
    config = quiet(epochs=6, checkpoint_every=1, checkpoint_keep=2)
    trainer = Trainer(model, optimizer, config)
    trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
    folder = trainer.folder / "checkpoints"
    kept = {saved.path.name: saved.manifest for saved in CheckpointStore(folder).list_saved()}
    assert [*kept] == ["step-00000030", "step-00000025"]
    assert [manifest.finished for manifest in kept.values()] == [True, False]
    assert CheckpointStore(folder).links() == {"best": "step-00000030", "latest": "step-00000030"}


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
    trainer = Trainer(model, optimizer, quiet(epochs=2), callbacks=[Ears()])
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
    assert (trainer.folder / "curve.svg").read_text().count("<polyline") == 2, "one of each fit"


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_costs_a_warning_and_not_the_training(
    background: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    heard: list[int] = []
    model, optimizer = line()
    ears = When("checkpoint", lambda trainer: heard.append(trainer.step))
    config = quiet(epochs=2, checkpoint_every_steps=5, checkpoint_async=background)
    trainer = Trainer(model, optimizer, config, callbacks=[ears])
    monkeypatch.setattr("allranks.train.checkpoint.async_writer.write_file", full)
    trainer.fit(DataLoader(points(), 8))
    assert trainer.step == 10
    said = capsys.readouterr().out
    # In the background the third may find the second still under way.
    least = 2 if background else 3
    assert said.count("could not be written: No space left on device") >= least
    assert heard == []
    left = {path.name for path in (trainer.folder / "checkpoints").iterdir()}
    assert left == {"owner.json"}


def test_too_little_room_is_found_before_writing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = line()
    trainer = Trainer(model, optimizer, quiet())
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    trainer.fit(DataLoader(points(), 8))
    assert "it needs 64 MiB, and" in capsys.readouterr().out
    assert CheckpointStore(trainer.folder / "checkpoints").list_saved() == []


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
    trainer = Trainer(model, optimizer, quiet(), callbacks=[Counts(numpy.float64(0.5))])
    trainer.fit(DataLoader(points(), 8))
    again = Counts(None)
    config = quiet(epochs=2, name="again", resume=str(trainer.folder))
    Trainer(model, optimizer, config, callbacks=[again]).fit(DataLoader(points(), 8))
    assert again.value == 0.5
    with pytest.raises(UsageError, match="The state of Counts holds a object"):
        Trainer(model, optimizer, quiet(), callbacks=[Counts(object())]).fit(
            DataLoader(points(), 8)
        )
