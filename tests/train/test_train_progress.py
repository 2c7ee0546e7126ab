"""The bar on a real terminal of 80 columns, plain lines elsewhere, and the words they are made of."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from allranks.train.monitoring import progress_line as module
from allranks.train.monitoring.progress_bar import ProgressBar
from allranks.train.monitoring.progress_line import (
    ProgressRates,
    bar_line,
    format_seconds,
    plain_line,
    width_of,
)


class Source:
    """What the training keeps up to date."""

    def __init__(self, **values: Any) -> None:
        self.step, self.total_steps, self.epoch, self.epochs = 300, 1000, 3, 10
        self.values: dict[str, float] = {"loss": 0.12345, "val_loss": 0.2}
        self.samples, self.started, self.phase, self.device = (
            9600,
            time.perf_counter(),
            "train",
            "cpu",
        )
        self.__dict__.update(values)


class Screen:
    """A terminal that knows carriage returns: what a person would see."""

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.column, self.widest = columns, [""], 0, 0

    def feed(self, text: str) -> None:
        for each in re.sub(r"\x1b\[[0-9;]*m", "", text):
            if each == "\r":
                self.column = 0
            elif each == "\n":
                self.lines.append("")
            else:
                line = self.lines[-1].ljust(self.column)
                self.lines[-1] = line[: self.column] + each + line[self.column + 1 :]
                self.column += 1
                self.widest = max(self.widest, self.column)

    @property
    def text(self) -> list[str]:
        return [line.rstrip() for line in self.lines]


class Terminal:
    """The two ends of a pseudo-terminal: one to write to, one to look at."""

    def __init__(self, columns: int) -> None:
        self.screen, self.raw = Screen(columns), ""
        self._end, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def look(self, wait: float = 0.2) -> Screen:
        """Everything that was written until now, drawn."""
        data = b""
        while select.select([self._end], [], [], wait if not data else 0.05)[0]:
            data += os.read(self._end, 65536)
        self.raw += data.decode()
        self.screen.feed(data.decode())
        return self.screen

    def close(self) -> None:
        self.stream.close()
        os.close(self._end)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(80)
    yield made
    made.close()


def meter_at(source: Source, seconds: float = 10.0, steps: int = 100) -> ProgressRates:
    """A meter that saw these steps of 32 samples in this time, up to now."""
    end, samples = source.step, source.samples
    source.step, source.samples = end - steps, samples - 32 * steps
    meter = ProgressRates(source)
    meter.update(100.0)
    for tick in range(1, 11):
        source.step = end - steps + steps * tick // 10
        source.samples = samples - 32 * (end - source.step)
        meter.update(100.0 + seconds * tick / 10)
    return meter


def bar_on(terminal: Terminal, source: Source, **options: Any) -> ProgressBar:
    return ProgressBar(source, stream=terminal.stream, out=terminal.stream, **options)


def test_rates_and_time_left_come_from_the_steps_seen() -> None:
    meter = meter_at(Source())
    assert meter.steps_per_second == pytest.approx(10.0)
    assert meter.samples_per_second == pytest.approx(320.0)
    assert meter.seconds_left == pytest.approx(70.0)


def test_validation_does_not_count_into_the_rate_but_into_the_time_left() -> None:
    source = Source()
    meter = meter_at(source)
    source.phase = "validate"
    meter.update(120.0)
    assert meter.steps_per_second == pytest.approx(10.0)
    assert meter.seconds_left is not None
    assert meter.seconds_left > 100.0


def test_slow_steps_still_give_a_time_left() -> None:
    source = Source(step=0, total_steps=4)
    meter = ProgressRates(source)
    for now in range(1, 181):
        source.step = now // 60
        meter.update(float(now))
    assert meter.seconds_left == pytest.approx(60.0)


def test_the_bar_shows_what_matters_within_80_columns(terminal: Terminal) -> None:
    source = Source()
    progress = bar_on(terminal, source)
    assert progress.kind == "bar"
    progress._rates = meter_at(source)
    progress._draw_bar()
    screen = terminal.look()
    (line,) = screen.text
    assert screen.widest <= 79
    assert line.startswith("epoch 3/10 ━")
    for part in ("300/1000", "loss 0.1235", "ETA 1m", "10 it/s", "320 smp/s", "iB"):
        assert part in line, line


@pytest.mark.parametrize(
    ("step", "bar"), [(0, "─" * 30), (500, "━" * 15 + "─" * 15), (985, "━" * 29 + "╸"), (1000, "━" * 30)]
)  # fmt: skip
def test_the_bar_is_as_long_as_the_way(step: int, bar: str) -> None:
    source = Source(step=step)
    assert f"epoch 3/10 {bar} {step}/1000" in bar_line(
        source, ProgressRates(source), 119, (False, True)
    )


@pytest.mark.parametrize("width", [10, 20, 30, 40, 60, 79, 119, 199])
@pytest.mark.parametrize("total", [None, 1000, 10**7])
@pytest.mark.parametrize("phase", ["train", "validate"])
def test_no_width_is_exceeded(width: int, total: int | None, phase: str) -> None:
    values = {"损失": 1e-9, "a_long_name_of_a_metric": math.nan, "x\x1b[2Jy\n": 3.0, "text": "a\nb"}
    source = Source(total_steps=total, values=values, phase=phase)
    line = bar_line(source, meter_at(source), width, (True, True))
    assert width_of(line) <= width
    assert "\n" not in line
    assert "\x1b[2J" not in line


def test_a_shorter_line_leaves_nothing_of_the_longer(terminal: Terminal) -> None:
    source = Source(total_steps=None, epochs=None, values={"loss": 1.0, "a_metric": 123.456})
    progress = bar_on(terminal, source)
    progress._draw_bar()
    source.values = {}
    progress._draw_bar()
    (line,) = terminal.look().text
    assert "metric" not in line
    assert "loss" not in line


def test_what_is_said_stands_on_lines_of_its_own(terminal: Terminal) -> None:
    source = Source()
    progress = bar_on(terminal, source)
    progress._draw_bar()
    progress.say("epoch 2 is done")
    progress.say("a\nb")
    text = terminal.look().text
    assert text[:3] == ["epoch 2 is done", "a", "b"]
    assert text[3].startswith("epoch 3/10")
    assert len(text) == 4


def test_the_thread_draws_and_the_last_state_stays(terminal: Terminal) -> None:
    source = Source(step=0)
    with bar_on(terminal, source) as progress:
        deadline = time.monotonic() + 60
        while " 0/1000" not in "".join(terminal.look().text) and time.monotonic() < deadline:
            continue
        for step in range(1, 1001):
            source.step, source.samples = step, 32 * step
            if step % 250 == 0:
                progress.say(f"said {step}")
    screen = terminal.look()
    assert screen.text[:4] == ["said 250", "said 500", "said 750", "said 1000"]
    assert "1000/1000" in screen.text[4]
    assert screen.text[5:] == [""]
    assert screen.widest <= 79
    progress.stop()
    assert terminal.look().text == screen.text


def test_an_error_leaves_a_clean_screen(terminal: Terminal) -> None:
    with pytest.raises(ZeroDivisionError), bar_on(terminal, Source()):
        1 / 0  # noqa: B018
    assert terminal.look().text[1:] == [""]


def test_a_new_width_is_taken_up(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = bar_on(terminal, Source())
    monkeypatch.setenv("COLUMNS", "40")
    progress._draw_bar()
    assert terminal.look().widest <= 39
    monkeypatch.delenv("COLUMNS")
    size = struct.pack("HHHH", 24, 60, 0, 0)
    fcntl.ioctl(terminal.stream.fileno(), termios.TIOCSWINSZ, size)
    progress._draw_bar()
    assert 39 < terminal.look().widest <= 59


def test_no_color_means_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = bar_on(terminal, Source())
    progress._draw_bar()
    terminal.look()
    assert "\x1b[32m" in terminal.raw
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.raw = ""
    progress._draw_bar()
    terminal.look()
    assert terminal.raw
    assert "\x1b" not in terminal.raw


def test_which_kind_is_chosen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(enabled: str | bool, stream: Any) -> str:
        return ProgressBar(Source(), enabled=enabled, stream=stream).kind

    assert kind("auto", io.StringIO()) == "plain"
    assert kind(True, io.StringIO()) == "bar"
    assert kind(False, terminal.stream) == "off"
    monkeypatch.setenv("TERM", "dumb")
    assert kind("auto", terminal.stream) == "plain"


def test_a_plain_line_has_everything() -> None:
    source = Source()
    meter = meter_at(source)
    meter._memory = int(1.25 * 2**30)
    assert plain_line(source, meter) == (
        "epoch 3/10  step 300/1000  loss 0.1235  val_loss 0.2  320 samples/s  ETA 1m10s  1.25 GiB"
    )


def test_plain_lines_come_at_tenths_and_then_ever_more_rarely() -> None:
    def lines(total: int, seconds: int) -> list[int]:
        source = Source(step=0, total_steps=total, started=0.0)
        progress, times = ProgressBar(source, enabled="auto", stream=io.StringIO()), []
        for now in range(1, seconds + 1):
            source.step = total * now // seconds
            if progress._is_line_due(float(now)):
                progress._said_at, progress._said_tenth = float(now), progress._rates.tenths()
                times.append(now)
        return times

    short = lines(100, 20)
    assert short == [10, 20]
    long = lines(10**6, 36000)
    assert long[:3] == [10, 20, 30]
    assert {3600 * tenth for tenth in range(1, 11)} <= set(long)
    assert len(long) < 250
    assert max(b - a for a, b in pairwise(long)) <= 300


def test_plain_output_ends_with_the_last_step() -> None:
    stream, out = io.StringIO(), io.StringIO()
    source = Source(step=0)
    with ProgressBar(source, stream=stream, out=out) as progress:
        source.step = 1000
        progress.say("hello")
    assert out.getvalue() == "hello\n"
    assert stream.getvalue().startswith("epoch 3/10  step 1000/1000")
    assert stream.getvalue().count("\n") == 1
    assert "\r" not in stream.getvalue()


def test_switched_off_only_says() -> None:
    stream, out = io.StringIO(), io.StringIO()
    with ProgressBar(Source(), enabled=False, stream=stream, out=out) as progress:
        progress.say("hello")
    assert (stream.getvalue(), out.getvalue()) == ("", "hello\n")


def test_a_closed_stream_does_not_end_the_training() -> None:
    stream = io.StringIO()
    progress = ProgressBar(Source(), enabled=True, stream=stream, out=io.StringIO()).start()
    stream.close()
    progress.say("still here")
    progress.stop()
    assert progress.kind == "off"


def test_a_program_that_forgets_to_stop_ends_cleanly(tmp_path: Path) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(
        textwrap.dedent("""
            import time, types
            from allranks.train.monitoring.progress_bar import ProgressBar
            source = types.SimpleNamespace(
                step=1, total_steps=2, epoch=1, epochs=1, values={}, samples=1,
                started=time.perf_counter(), phase="train", device="cpu")
            ProgressBar(source, enabled=True).start()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1/2" in done.stderr
    assert done.stderr.endswith("\n")
    assert "Error" not in done.stderr


def test_ascii_streams_get_an_ascii_bar() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    progress = ProgressBar(Source(values={"损": 1.0}), enabled=True, stream=stream)
    progress._draw_bar()
    stream.flush()
    assert progress.kind == "bar"
    assert b" ####" in stream.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (130, "2m10s"), (3900, "1h05m"), (183600, "2d03h")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_memory_is_that_of_the_process() -> None:
    assert 2**20 < module.memory_in_use("cpu") < 2**40
