"""What a checkpoint is of: a whole step, the training's own weights, its end; and what hinders one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import line, points, quiet, untimed  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.train.callbacks import Callback, SaveEvery, StepDecay, When  # noqa: E402
from allranks.train.checkpoint import async_writer as saver  # noqa: E402
from allranks.train.checkpoint.async_writer import CheckpointSaver  # noqa: E402
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore  # noqa: E402
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader  # noqa: E402
from allranks.train.checkpoint.write_plan import CheckpointState  # noqa: E402
from allranks.train.loop.collective_save import SaveDuration  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


def made(*callbacks: Callback, **fields: Any) -> Trainer:
    return Trainer(*line(), quiet(**fields), callbacks=callbacks)


def data() -> DataLoader[Any]:
    return DataLoader(points(), 8)  # five batches


def trained(*callbacks: Callback, kill: int = 0, **fields: Any) -> Trainer:
    """A training that a hook may break off after so many steps."""

    def end(trainer: Any) -> None:
        if trainer.step == kill:
            raise KeyboardInterrupt

    trainer = made(*callbacks, When("step_end", end), **fields)
    if kill:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(data())
    else:
        trainer.fit(data())
    return trainer


class Window(Callback):
    """Asks in the middle of a step, which accumulates three batches."""

    def on_batch_end(self, trainer: Any) -> None:
        if trainer.context.state.batch == 2 and trainer.epoch == 2:
            trainer.save_checkpoint("mine")


HALVES: dict[str, Any] = {
    "before the other hooks": (lambda: [SaveEvery(epochs=1), StepDecay(1, 0.5)], 8, {}),
    "within a step": (lambda: [Window()], 4, {"accumulate": 3}),
    "before the log": (lambda: [SaveEvery(steps=4)], 6, {"log_every": 2}),
}


@pytest.mark.parametrize("case", HALVES)
def test_what_a_hook_asks_for_is_saved_when_it_is_whole(
    case: str, run_folder: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    callbacks, kill, fields = HALVES[case]
    fields = {"epochs": 4, "checkpoint_async": False, **fields}
    (tmp_path / "whole").mkdir()
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path / "whole"))
    whole = trained(*callbacks(), **fields)
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(run_folder))
    new_process()
    trained(*callbacks(), kill=kill, **fields)
    new_process()
    parts = trained(*callbacks(), **fields)
    assert parts.context.state.first_step > 0
    assert torch.equal(whole.model.weight, parts.model.weight)
    assert curve(whole.folder) == curve(parts.folder)


def test_a_save_asked_for_before_a_step_is_of_its_end() -> None:
    ask = When("before_step", lambda t: t.save_checkpoint("mine") if t.step == 2 else None)
    trainer = made(ask, log_every=100)
    trainer.fit(data())
    assert CheckpointReader(trainer.checkpoints / "mine").manifest.step == 3


def curve(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [untimed(row) for row in rows]


@pytest.mark.parametrize("at", ["after", "fit_end", "early"])
def test_a_save_after_the_end_is_of_a_finished_training(
    at: str, run_folder: Path, new_process: Any
) -> None:
    def life() -> Trainer:
        new_process()
        stop = When("step_end", lambda t: t.stop() if at == "early" and t.step == 7 else None)
        keep = When("fit_end", lambda t: t.save_checkpoint("final") if at != "after" else None)
        trainer = made(stop, keep, epochs=4)
        trainer.fit(data())
        return trainer

    first = life()
    if at == "after":
        first.save_checkpoint("final")
    assert all(saved.manifest.finished for saved in CheckpointStore(first.checkpoints).list_saved())
    assert (first.checkpoints / "final").is_dir()
    again = life()
    assert again.context.state.first_step == again.step == first.step
    again.save_checkpoint("again")
    assert CheckpointReader(again.checkpoints / "again").manifest.finished


def test_the_path_that_is_returned_is_there() -> None:
    returned: list[Path] = []
    ask = When("epoch_end", lambda t: returned.extend([t.save_checkpoint("a")]))
    trainer = made(ask, epochs=2, checkpoint_every=1)
    trainer.fit(data())
    assert [path.name for path in returned] == ["a", "a"]
    plain = trainer.save_checkpoint()
    assert plain == trainer.checkpoints / "step-00000010"
    named = trainer.save_checkpoint("b")
    assert named == trainer.checkpoints / "b"
    assert [path.resolve().name for path in (plain, returned[0], named)] == [
        "step-00000010", "step-00000010", "step-00000010-2",
    ]  # fmt: skip
    assert all((path / "manifest.json").exists() for path in (plain, returned[0], named))


def test_a_new_start_is_not_finished_because_an_old_one_was(
    run_folder: Path, new_process: Any
) -> None:
    def life(kill: int = 0, **fields: Any) -> Trainer:
        new_process()
        return trained(kill=kill, epochs=4, checkpoint_best_only=True, **fields)

    assert life().step == 20
    assert [saved.step for saved in CheckpointStore(run_folder / "checkpoints").list_saved()] == [
        20
    ]  # the best
    assert life(kill=13, resume=False).step == 13
    last = life()
    assert (last.context.state.first_step, last.step) == (10, 20)


def test_averaged_weights_are_not_saved_as_the_trained_ones() -> None:
    trainer = made(epochs=2, ema=0.5)
    trainer.fit(data())
    with trainer.averaged(), pytest.raises(UsageError, match="Call it outside of the block"):
        trainer.save_checkpoint("ema")
    trainer.save_checkpoint("mine")
    kept = CheckpointReader(trainer.checkpoints / "mine").tensor("model.weight")
    assert torch.equal(kept, trainer.model.weight)


def test_numbers_that_wait_for_the_next_log_are_saved(run_folder: Path, new_process: Any) -> None:
    def life(kill: int = 0) -> Trainer:
        new_process()
        log = When("step_end", lambda t: t.log("mine", 7.0) if t.step == 3 else None)
        return trained(
            log, kill=kill, epochs=2, log_every=50, checkpoint_every_steps=4, checkpoint_async=False
        )

    life(kill=5)
    trainer = life()
    assert trainer.context.state.first_step == 4
    assert [row["mine"] for row in curve(trainer.folder) if "mine" in row] == [7.0]


def test_numpy_numbers_are_saved_and_what_cannot_be_is_told_at_the_start() -> None:
    numpy = pytest.importorskip("numpy")
    model, _ = line()
    optimizer = torch.optim.Adam(model.parameters(), lr=numpy.float64(1e-3))
    trainer = Trainer(model, optimizer, quiet())
    trainer.fit(data())
    assert [saved.step for saved in CheckpointStore(trainer.checkpoints).list_saved()] == [5]
    Trainer(model, optimizer, quiet(resume=str(trainer.checkpoints), epochs=2)).fit(data())
    optimizer.param_groups[0]["mine"] = object()
    with pytest.raises(UsageError, match=r"state of the optimizer holds a object \(at .*mine\)"):
        Trainer(model, optimizer, quiet()).fit(data())


def test_a_state_that_cannot_be_saved_any_more_costs_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Turns(Callback):
        kept: Any = None

        def on_epoch_end(self, trainer: Any) -> None:
            self.kept = object()

        def state_dict(self) -> dict[str, Any]:
            return {"kept": self.kept}

    trainer = made(Turns(), epochs=2, checkpoint_every=1)
    trainer.fit(data())
    assert trainer.step == 10
    said = capsys.readouterr().out
    assert "step 5 could not be written: The state of Turns holds a object (at kept)" in said
    assert "There is none yet; training continues." in said
    assert [path.name for path in trainer.checkpoints.iterdir()] == ["owner.json"]


@pytest.mark.parametrize("event", ["fit_end", "exception"])
def test_the_last_hooks_saves_are_on_the_disk(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = saver.write_file

    def slow(*args: Any) -> Any:
        time.sleep(0.2)
        return write(*args)

    monkeypatch.setattr(saver, "write_file", slow)
    monkeypatch.setattr("allranks.train.loop.checkpoint_policy.PATIENCE_SECONDS", (0.0, 0.0))
    trainer = trained(
        When(event, lambda t, *_: t.save_checkpoint("last")), kill=3 * (event == "exception")
    )
    assert CheckpointReader(trainer.checkpoints / "last").manifest.step == trainer.step


def test_a_failing_training_waits_for_its_checkpoint_as_long_as_they_take(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, own = (run_folder / "attempts" / number for number in "12")
    for each in (before, own):
        each.mkdir(parents=True)
    (before / "progress.json").write_text(json.dumps({"save_seconds": 21.0}))
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(own))
    waited: list[float | None] = []

    def wait(self: CheckpointSaver, timeout: float | None = None) -> None:
        waited.append(timeout)

    monkeypatch.setattr(CheckpointSaver, "wait", wait)
    trained(kill=2, checkpoint_every_steps=1)
    assert waited[-1] == 42.0


def test_how_long_a_save_takes() -> None:
    duration = SaveDuration()
    weights = torch.zeros(1_000_000)
    duration.estimate(CheckpointState({"model.weight": weights}), 1)
    assert duration.longest == pytest.approx(0.12)  # three times 4 MB, at 100 MB a second
    duration.estimate(
        CheckpointState({"model.weight": weights, "optimizer.0.exp_avg": weights.clone()}), 1
    )
    assert duration.longest == pytest.approx(0.08)
    duration.measure(0.01)
    assert duration.longest == 0.01
