"""A Trainer that is told to leave: what it saves, what it says, and how it goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import line, points, quiet  # noqa: E402

from allranks import Trainer, prepare  # noqa: E402
from allranks.errors import AllranksError, Interrupted  # noqa: E402
from allranks.runtime.preemption.signal_flags import STOP_SIGNALS  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


@pytest.fixture(autouse=True)
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An attempt as a job script makes it; the handlers are put back after the test."""
    folder = tmp_path / "run" / "attempts" / "1"
    folder.mkdir(parents=True)
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(folder))
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield folder
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Tell(Callback):
    """Signals its own process at a step, or in a validation."""

    def __init__(self, step: int = 0, validation: int = 0, number: int = signal.SIGUSR1) -> None:
        self.at, self.validation, self.number = step, validation, number
        self.heard: list[str] = []

    def on_step_end(self, trainer: Any) -> None:
        time.sleep(0.002)
        if trainer.step == self.at:
            os.kill(os.getpid(), self.number)

    def on_val_start(self, trainer: Any) -> None:
        self.heard.append(f"val at {trainer.step}")
        self.validation -= 1
        if self.validation == 0:
            os.kill(os.getpid(), self.number)

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        self.heard.append("exception")


def trainer(*callbacks: Callback, **config: Any) -> Trainer:
    return Trainer(*line(), quiet(**config), callbacks=callbacks)


def data(n: int = 40) -> DataLoader:
    return DataLoader(points(n), batch_size=4)


def latest(made: Trainer) -> Path:
    (link,) = made.folder.glob("checkpoints*/latest")
    return link


def progress(attempt: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((attempt / "progress.json").read_text())
    return found


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_it_saves_the_step_and_leaves(number: int, attempt: Path) -> None:
    tell = Tell(step=13, number=number)
    made = trainer(tell, epochs=1000)
    with pytest.raises(Interrupted) as left:
        made.fit(data())
    assert left.value.code == 0
    step = made.step
    assert step >= 13
    name = signal.Signals(number).name
    assert str(left.value) == f"saved step {step} on {name}; the next attempt resumes from there"
    assert (attempt / "interrupted").read_text().strip() == str(left.value)
    assert (progress(attempt)["outcome"], progress(attempt)["saved_step"]) == ("interrupted", step)
    assert (made.folder / "checkpoints" / f"step-{step:08d}" / "manifest.json").is_file()
    assert tell.heard == [], "no failure"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_was_interrupted_goes_on_to_the_same_end(
    attempt: Path, new_process: Callable[[], None]
) -> None:
    whole = Trainer(*line(), quiet(epochs=30, checkpoint=False))
    whole.fit(data())
    first = trainer(Tell(step=17), epochs=30)
    with pytest.raises(Interrupted):
        first.fit(data())
    new_process()
    again = trainer(epochs=30, resume=str(latest(first)))
    model, _ = again.fit(data())
    assert again.context.state.first_step == first.step
    assert again.step == whole.step
    for one, other in zip(model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_long_validation_is_broken_off_and_made_again(
    attempt: Path, new_process: Callable[[], None]
) -> None:
    class Slow(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)
            return points(200)[index]

    tell = Tell(validation=2)
    made = trainer(tell, max_steps=500, val_every_steps=5)
    with pytest.raises(Interrupted):
        made.fit(data(), DataLoader(Slow(), batch_size=1))
    assert tell.heard == ["val at 5", "val at 10"]
    assert made.step == 10
    new_process()
    tell = Tell()
    again = trainer(tell, max_steps=12, val_every_steps=5, resume=str(latest(made)))
    again.fit(data(), data())
    assert tell.heard[0] == "val at 10", "first of all, what was broken off"


def test_a_save_that_fails_is_a_failure(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(Tell(step=3), epochs=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(
        AllranksError, match=r"is about to end \(SIGUSR1\) and step \d+ was not saved"
    ):
        made.fit(data())
    assert not (attempt / "interrupted").exists()
    assert progress(attempt)["outcome"] == "failed"


def test_without_checkpoints_nobody_leaves(attempt: Path) -> None:
    """There would be nothing to go on from."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        made = trainer(Tell(step=3), epochs=2, checkpoint=False)
        made.fit(data())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert made.step == 20


def test_a_signal_at_the_very_end_lets_it_finish(attempt: Path) -> None:
    made = trainer(Tell(step=20), epochs=2)
    made.fit(data())
    assert progress(attempt)["outcome"] == "finished"


def test_checkpoints_by_time(attempt: Path) -> None:
    class Pause(Callback):
        def on_step_end(self, trainer: Any) -> None:
            time.sleep(0.01)

    made = trainer(Pause(), max_steps=150, checkpoint_every_time="0:00:01", checkpoint_keep=10)
    made.fit(data())
    steps = [path.name for path in (made.folder / "checkpoints").glob("step-*")]
    assert len(steps) >= 2, steps


def test_a_prepared_loop_leaves(attempt: Path) -> None:
    model, _, loader = prepared = prepare(*line(), data())
    saved: list[int] = []

    def loop() -> None:
        for _ in range(1000):
            for x, y in loader:
                prepared.backward(((model(x) - y) ** 2).mean())
                prepared.step()
                time.sleep(0.002)
                if prepared.steps == 9:
                    os.kill(os.getpid(), signal.SIGUSR1)
                if prepared.should_stop():
                    saved.append(prepared.steps)
                    prepared.exit()

    with pytest.raises(Interrupted) as left:
        loop()
    assert f"saved step {saved[0]} on SIGUSR1" in str(left.value)
    assert saved[0] >= 9
