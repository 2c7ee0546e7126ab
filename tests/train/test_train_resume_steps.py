"""Going on in the middle of a warm-up, of the end of an epoch, of a search without gradients."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from ranks_script_joined import measured  # noqa: E402
from ranks_script_rig import HERE, started  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import line, points, quiet, untimed  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import Interrupted  # noqa: E402
from allranks.runtime.preemption import deadline as leaving  # noqa: E402
from allranks.runtime.preemption import flag_exchange as sync_points  # noqa: E402
from allranks.runtime.preemption.signal_flags import STOP_SIGNALS  # noqa: E402
from allranks.train.callbacks import When  # noqa: E402
from allranks.train.loop import stop_agreement as coordination  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The signals' handlers are put back after the test."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> Any:
    """``process("a")`` is a new process of the run in the folder a."""

    def begin(run: str) -> Path:
        new_process()
        monkeypatch.setattr(sync_points, "_SINGLE_PROCESS_SECONDS", 0.0)  # at every step and batch
        (tmp_path / run).mkdir(exist_ok=True)
        monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path / run))
        return tmp_path / run

    return begin


class Killed(Exception):
    """Stands for a kill: nothing of the training's own end is done."""


def at(event: str, step: int, deed: Any) -> When:
    return When(event, lambda trainer: deed(trainer) if trainer.step == step else None)


def kill(_: Any) -> None:
    raise Killed


def tell(_: Any) -> None:
    """A signal, which is seen after the next batch, as in a validation that is slow."""
    os.kill(os.getpid(), signal.SIGUSR1)


def train(*callbacks: Any, optimizer: Any = None, val: bool = False, **fields: Any) -> Trainer:
    """Epochs of 10 steps, until it ends, leaves or is killed."""
    model, sgd = line()
    settings = {"checkpoint_async": False, "checkpoint_every_steps": 5, "log_every": 3, **fields}
    trainer = Trainer(model, optimizer or sgd, quiet(**settings), callbacks=callbacks)
    with suppress(Killed, Interrupted):
        trainer.fit(DataLoader(points(), 4), DataLoader(points(), 4) if val else None)
    return trainer


def weights(trainer: Trainer) -> list[float]:
    return [float(each) for p in trainer.model.parameters() for each in p.detach().flatten()]


def curve(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [untimed(row) for row in rows]


def kinds(folder: Path) -> list[tuple[str, int]]:
    return [(row["kind"], row["step"]) for row in curve(folder) if row["kind"] != "train"]


def test_a_warm_up_goes_on(process: Any) -> None:
    whole_folder = process("whole")
    whole = train(epochs=2, warmup_steps=13)
    folder = process("parts")
    train(at("step_end", 7, kill), epochs=2, warmup_steps=13)
    process("parts")
    parts = train(epochs=2, warmup_steps=13)
    assert parts.context.state.first_step == 5
    assert weights(parts) == weights(whole)
    assert curve(folder) == curve(whole_folder)


ENDS: dict[str, dict[str, Any]] = {
    "in the middle of an epoch": {"max_steps": 15},
    "with an epoch": {"max_steps": 20},
    "with the epochs": {"epochs": 2},
    "between two epochs": {"epochs": 3},
    "in a validation by steps": {"max_steps": 15, "val_every_steps": 5},
}


@pytest.mark.parametrize("deed", [tell, kill])
@pytest.mark.parametrize("case", ENDS)
def test_a_broken_off_validation_is_made_once(case: str, deed: Any, process: Any) -> None:
    fields, step = ENDS[case], 15 if ENDS[case].get("max_steps") == 15 else 20
    whole_folder = process("whole")
    whole = train(val=True, **fields)
    folder = process("parts")
    broken = train(at("val_start", step, deed), val=True, **fields)
    assert broken.step == step
    assert ("val", step) not in kinds(folder)
    process("parts")
    parts = train(val=True, **fields)
    assert curve(folder) == curve(whole_folder)
    assert weights(parts) == weights(whole)
    assert parts.metrics["val_loss"] == whole.metrics["val_loss"]


def test_a_training_made_longer_goes_on_in_its_epoch(process: Any) -> None:
    process("whole")
    whole = train(val=True, epochs=2)
    folder = process("parts")
    train(at("val_start", 15, tell), val=True, max_steps=15)
    process("parts")
    parts = train(val=True, epochs=2)
    assert weights(parts) == weights(whole)
    wanted = [("epoch", 10), ("val", 10), ("epoch", 15), ("epoch", 20), ("val", 20)]
    assert kinds(folder) == wanted


def test_the_time_of_earlier_attempts_counts(process: Any) -> None:
    def pass_time(hours: float) -> Any:
        def earlier(trainer: Any) -> None:
            trainer.context.state.started -= 3600 * hours

        return earlier

    process("run")
    train(at("step_end", 4, pass_time(2)), at("step_end", 6, kill), epochs=9, max_time="3h")
    process("run")
    second = train(
        at("step_end", 7, pass_time(1.5)), at("step_end", 13, kill), epochs=9, max_time="3h"
    )
    assert second.context.state.first_step == 5
    assert second.stop_reason == "max_time=3h is over"
    assert 7 <= second.step < 13
    process("run")
    longer = train(at("step_end", 21, kill), epochs=9, max_time="9h")
    assert longer.step == 21
    process("run")
    over = train(epochs=9, max_time="3h")
    assert (over.context.state.first_step, over.step) == (20, 20), "its time was over before"
    assert over.stop_reason == "max_time=3h is over"


class Asking:
    """A random search that can be saved."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.loss, self.best = float("inf"), torch.zeros(2)

    def ask(self) -> Any:
        step = 0.3 * torch.randn(2, generator=self.generator)
        return type("Candidate", (), {"value": self.best + step})

    def tell(self, candidate: Any, loss: float) -> None:
        if loss < self.loss:
            self.loss, self.best = loss, candidate.value

    def state_dict(self) -> dict[str, Any]:
        kept = {"loss": self.loss, "best": self.best}
        return {**kept, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.best = state["loss"], state["best"]
        self.generator.set_state(state["generator"])


class Forgetting:
    """One good candidate, and bad ones after it; its word is always bad."""

    def __init__(self, *good: list[float]) -> None:
        self.next = [torch.tensor(each) for each in good]

    def ask(self) -> Any:
        value = self.next.pop() if self.next else torch.tensor([-9.0, -9.0])
        return type("Candidate", (), {"value": value})

    def tell(self, candidate: Any, loss: float) -> None:
        pass

    def provide_recommendation(self) -> Any:
        return type("Candidate", (), {"value": torch.tensor([-9.0, -9.0])})


@pytest.fixture
def without_gradients() -> Iterator[None]:
    Trainer.set_use_grad(False)
    yield
    Trainer.set_use_grad(True)


@pytest.mark.usefixtures("without_gradients")
def test_a_search_goes_on(process: Any, capsys: pytest.CaptureFixture[str]) -> None:
    whole_folder = process("whole")
    whole = train(optimizer=Asking(), epochs=3)
    folder = process("parts")
    train(at("step_end", 17, kill), optimizer=Asking(), epochs=3)
    process("parts")
    parts = train(optimizer=Asking(), epochs=3)
    assert parts.context.state.first_step == 15
    assert curve(folder) == curve(whole_folder)
    assert weights(parts) == weights(whole)
    assert "WARNING" not in capsys.readouterr().out


@pytest.mark.usefixtures("without_gradients")
def test_a_search_that_cannot_be_saved_is_told_and_keeps_its_best(
    process: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    process("run")
    train(at("step_end", 7, kill), optimizer=Forgetting([3.0, 0.5]), epochs=2)
    assert "WARNING: Forgetting has no state_dict() and load_state" in capsys.readouterr().out
    process("run")
    trainer = train(optimizer=Forgetting(), epochs=2)
    assert "its search starts over at step 5" in capsys.readouterr().out
    assert weights(trainer) == [3.0, 0.5]


def test_an_interruptible_validation_does_not_make_the_lead_longer(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten batches of 30 seconds each: flags are exchanged after every one of them."""
    process("run")
    now, gaps = [0.0], [0.0]
    timed = partial(sync_points.SyncPoints, clock=lambda: now[0])
    monkeypatch.setattr(coordination, "SyncPoints", timed)
    wants_to_stop = leaving.Deadline.wants_to_stop

    def noted(self: Any, rank: int, gap: float = 0.0) -> bool:
        gaps.append(gap)
        return wants_to_stop(self, rank, gap)

    monkeypatch.setattr(leaving.Deadline, "wants_to_stop", noted)

    class Slow(Trainer):
        def validation_step(self, model: Any, batch: Any) -> Any:
            now[0] += 30
            return (model(batch[0]) - batch[1]).square().mean()

    def stepped(_: Any) -> None:
        now[0] += 1

    model, optimizer = line()
    trainer = Slow(model, optimizer, quiet(epochs=3), callbacks=[When("step_end", stepped)])
    trainer.fit(DataLoader(points(), 4), DataLoader(points(), 4))
    assert max(gaps) == 30


def test_ranks_that_join_at_the_end_of_an_epoch(process: Any, tmp_path: Path) -> None:
    """What was measured since the last log is known to the first of them alone."""
    folder = process("one")
    settings = quiet(epochs=2, checkpoint_every_steps=5, checkpoint_async=False, log_every=1000)
    model, optimizer = line()
    callbacks = [at("epoch_end", 5, kill)]
    one = Trainer(model, optimizer, settings, loss_fn=measured, callbacks=callbacks)
    with pytest.raises(Killed):
        one.fit(DataLoader(points(), 8))
    checkpoint = str(folder / "checkpoints" / "step-00000005")
    script = str(HERE / "ranks_script_joined.py")
    with started(tmp_path, sys.executable, script, checkpoint) as start:
        code, out, err = start.end(100)
    assert (code, err) == (0, "")
    assert "ended at 10" in out
    (joined,) = tmp_path.glob("runs/ranks_script_joined*")
    first = next(row for row in curve(joined) if row["kind"] == "epoch")
    assert first["train_twice"] == pytest.approx(curve(folder)[-1]["train_twice"])
