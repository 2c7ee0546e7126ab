"""What the clock says is what happened: sleeps in known places, known numbers of samples, a GPU that lags."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import points, quiet, samples_told, train_lines  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402
from allranks.train.monitoring.recorder import StepTimesFile, throughput  # noqa: E402
from allranks.train.monitoring.step_time import SHARED, StepClock, fit_phases  # noqa: E402
from allranks.train.step.metric_accumulator import MetricAccumulator  # noqa: E402
from allranks.train.step.phase_timer import MAX_STEPS, PHASES, PhaseTimer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


class Sleepy(nn.Module):
    """Its forward pass sleeps a little, and every fifth time ten times as long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds, self.calls = nn.Linear(1, 1), seconds, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        time.sleep(self.seconds * (1 if self.calls % 5 else 10))
        return self.layer(x)


def trained(
    model: nn.Module | None = None,
    loader: Any = None,
    val: Any = None,
    callbacks: Any = (),
    **fields: Any,
) -> Any:
    model = nn.Linear(1, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = quiet(**{"checkpoint": False, **fields})
    trainer = Trainer(model, optimizer, config, callbacks=callbacks)
    trainer.fit(loader or DataLoader(points(), 8), val)
    return trainer


def shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    whole = sum(row["step_seconds"] for row in rows)
    names = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
    return {name: sum(row[f"{name}_seconds"] for row in rows) / whole for name in names}


# -- sleeps in known places


def test_steps_that_are_not_alike_are_all_forward() -> None:
    """However few of the slow ones are marked, what they took is not called other."""
    rows = train_lines(trained(Sleepy(0.005), epochs=8, log_every=20))
    found = shares(rows)
    assert found["forward"] > 0.8
    assert found["other"] < 0.1


class Slow(Callback):
    """Sleeps after every batch."""

    def on_batch_end(self, trainer: Any) -> None:
        time.sleep(0.01)


def test_what_callbacks_take_is_other() -> None:
    rows = train_lines(trained(Sleepy(0.002), epochs=4, log_every=10, callbacks=[Slow()]))
    for row in rows:
        assert row["other_seconds"] >= 0.01
        assert row["step_seconds"] - row["other_seconds"] >= 0.002
        assert row["forward_seconds"] >= 0.002


def test_marked_steps_are_fitted_to_the_mean_step() -> None:
    phases = {"forward": 2.0, "backward": 4.0, "communication": 1.0, "optimizer": 1.0}
    half = {name: seconds / 2 for name, seconds in phases.items()}
    twice = {name: 2 * seconds for name, seconds in phases.items()}
    # A CPU does one thing at a time: 10 s, less data and other, is what the steps got.
    assert fit_phases(phases, 5.0, 1.0, 10.0, overlaps=False) == (5.0, half)
    assert fit_phases(phases, 3.0, 1.0, 20.0, overlaps=False) == (3.0, twice)
    # Behind a GPU's work a wait may cost nothing; the marks are believed if that explains the time.
    assert fit_phases(phases, 5.0, 0.0, 10.0, overlaps=True) == (2.0, phases)
    assert fit_phases(phases, 5.0, 9.0, 4.0, overlaps=True) == (0.0, half)
    assert fit_phases(phases, 3.0, 1.0, 20.0, overlaps=True) == (3.0, twice)
    assert fit_phases(None, 5.0, 1.0, 4.0, overlaps=True) == (4.0, None)


# -- how many samples


@pytest.mark.parametrize("fields", [{}, {"accumulate": 3}])
@pytest.mark.parametrize("kind", ["loader", "list"])
def test_speeds_and_times_make_all_samples(kind: str, fields: dict[str, Any]) -> None:
    """Also with short batches, short steps, and data that does not tell its batch size."""
    loader: Any = DataLoader(points(43), 8)
    rows = train_lines(
        trained(loader=loader if kind == "loader" else [*loader], epochs=3, log_every=2, **fields)
    )
    assert samples_told(rows) == pytest.approx(3 * 43, rel=1e-3)


def test_samples_of_an_attempt_before_are_not_counted_again() -> None:
    before, after = (MetricAccumulator(torch.device("cpu"), 1) for _ in range(2))
    before.add(1.0, {}, 8)
    after.load_state(before.state())
    after.add(3.0, {}, 8)
    assert after.samples == 8
    assert after.flush().sums()["loss"] == (32.0, 16.0)
    after.add(3.0, {}, 5)
    assert after.samples == 5


def test_what_one_rank_does_not_know_is_not_told() -> None:
    """Half of the ranks' operations over all their peaks would be an MFU that is too low."""
    known = {**dict.fromkeys(SHARED, 0.1), "samples": 8.0, "step": 1.0, "flops": 6.0, "peak": 12.0}

    def told(**other: float) -> dict[str, float]:
        one, two = known, {**known, **other}
        return throughput([one[name] + two[name] for name in SHARED], 2)

    both = told()
    assert both["samples_per_second"] == 16
    assert both["flops_per_second"] == 96
    assert both["mfu"] == 4
    assert not {"flops_per_second", "mfu"} & set(told(flops=math.nan))
    assert set(both) - set(told(peak=math.nan)) == {"mfu"}
    assert told(step=math.nan) == {}
    assert told(samples=0.0)["samples_per_second"] == 8  # a rank may have no part in a short batch
    unmarked = told(**dict.fromkeys(PHASES, math.nan))
    assert "forward_seconds" not in unmarked
    assert unmarked["other_seconds"] == pytest.approx(0.8)


# -- a GPU that is behind the host


class Device:
    """Pretends the device of CUDA events: it comes by them later, at times of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Any] = []
        self.done = 0
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: _Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: self.catch_up())

    def catch_up(self) -> None:
        self.done = len(self.events)


class _Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.device.events.append(self)
        self.place = len(self.device.events)

    def query(self) -> bool:
        return self.place <= self.device.done

    def synchronize(self) -> None:
        self.device.done = max(self.device.done, self.place)

    def elapsed_time(self, other: _Event) -> float:
        assert other.query()
        return 1000.0 * (other.place - self.place)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def clock(device: Device) -> StepClock:
    cuda = torch.device("cuda")
    clock = StepClock(cuda, PhaseTimer(cuda, waits_for_ranks=False))
    clock.begin(0)
    return clock


def test_a_window_tells_of_what_the_device_has_done(device: Device, clock: StepClock) -> None:
    for step in (2, 6):
        with clock.paused(step):
            pass
    assert clock.window(10).steps == 0  # the host was quick, the device has not begun
    assert device.done == 0  # and is not waited for
    device.done = 2
    told = clock.window(20)
    assert (told.steps, told.step) == (2, pytest.approx(1 / 2))
    device.catch_up()
    told = clock.window(20)
    assert (told.steps, told.step) == (18, pytest.approx(3 / 18))
    told = clock.window(30, wait=True)
    assert (told.steps, told.step) == (10, pytest.approx(2 / 10))
    assert clock.window(30).steps == 0  # no step since


def test_a_validation_between_is_no_step_s_time(device: Device, clock: StepClock) -> None:
    with clock.away():
        time.sleep(0.02)
    told = clock.window(1, wait=True)
    assert told.step is not None
    assert 0.5 < told.step <= 1 - 0.02  # of a second from one event to the next


def test_validations_and_saves_begin_when_the_device_is_done(
    device: Device, clock: StepClock
) -> None:
    """What it had still to do is the steps' time."""
    for pause in (clock.saving, clock.away):
        with clock.paused(1):
            assert device.done < len(device.events)
            with pause():
                assert device.done == len(device.events)


def test_marks_that_nobody_reads_have_an_end() -> None:
    marks = PhaseTimer(torch.device("cpu"), waits_for_ranks=False)
    for _ in range(2 * MAX_STEPS):
        marks.begin()
        marks.end("forward")
        marks.end_step()
    assert len(marks.read()) == MAX_STEPS


# -- what can be seen meanwhile


class Looks(Callback):
    """Notes which steps are in the file when a validation begins."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_val_start(self, trainer: Any) -> None:
        self.seen.append([row["step"] for row in train_lines(trainer)])


def test_all_is_written_before_a_validation() -> None:
    looks = Looks()
    val = DataLoader(points(), 8)
    trained(val=val, epochs=1, log_every=1, val_every_steps=2, callbacks=[looks])
    assert looks.seen == [[1, 2], [1, 2, 3, 4]]


def test_steps_of_ranks_can_be_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.train.monitoring.recorder.MIN_SECONDS", 0.0)
    monkeypatch.setattr("allranks.train.monitoring.recorder.BYTES_PER_SECOND", math.inf)
    file = StepTimesFile(tmp_path, 1, print)
    for step in (1, 2):
        file.add(step, 1, 1, [1.0, 0.1, 0.5, 0.0])
    file.flush()
    assert (tmp_path / "steps.jsonl").read_text().count("\n") == 2
    file.close()


def test_each_fit_of_a_script_has_its_number() -> None:
    for _ in range(2):
        folder = trained(epochs=1, log_every=5).folder
    rows = map(json.loads, (folder / "attempts/1/steps.jsonl").read_text().splitlines())
    assert [(row["fit"], row["step"]) for row in rows] == [(1, 5), (2, 5)]
