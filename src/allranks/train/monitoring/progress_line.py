"""The line of the progress bar: rates, remaining time and memory, cut to a width."""

from __future__ import annotations

import os
import re
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from allranks.core.formatting import amount, size

WINDOW_SECONDS = 10.0
MEMORY_SECONDS = 2.0

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class ProgressSource(Protocol):
    """What the bar reads. Plain numbers only: reading a tensor would wait for the device."""

    @property
    def step(self) -> int: ...
    @property
    def total_steps(self) -> int | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def epochs(self) -> int | None: ...
    @property
    def values(self) -> Mapping[str, float]: ...
    @property
    def samples(self) -> int: ...
    @property
    def started(self) -> float: ...
    @property
    def phase(self) -> str: ...
    @property
    def device(self) -> Any: ...


class ProgressRates:
    """Rates over the last seconds of training, the remaining time, and the memory in use."""

    def __init__(self, source: ProgressSource) -> None:
        self._source = source
        self._window: deque[tuple[float, int, int]] = deque()
        self._trained = self._updated = 0.0
        self._begun = source.step
        self._first: tuple[float, int] | None = None
        self._memory, self._memory_at = 0, -MEMORY_SECONDS
        self.steps_per_second = self.samples_per_second = 0.0
        self.seconds_left: float | None = None

    def update(self, now: float) -> None:
        """Read the current numbers. Time spent in validation does not count for the rates."""
        if self._updated and self._source.phase == "train":
            self._trained += now - self._updated
            self._window.append((self._trained, self._source.step, self._source.samples))
        self._updated = now
        while len(self._window) > 2 and self._trained - self._window[0][0] > WINDOW_SECONDS:
            self._window.popleft()
        self._rates()
        self._time_left(now)
        if now - self._memory_at >= MEMORY_SECONDS:
            self._memory, self._memory_at = memory_in_use(self._source.device), now

    def tenths(self) -> int:
        """Return how many tenths of all steps are done."""
        total = self._source.total_steps
        return 10 * self._source.step // total if total else 0

    def memory(self) -> str:
        """Return the peak on a GPU, the process's memory on a CPU."""
        return size(self._memory) if self._memory else ""

    def _rates(self) -> None:
        if len(self._window) < 2:
            return
        (then, step, samples), (now, last, seen) = self._window[0], self._window[-1]
        passed = max(now - then, 1e-9)
        self.steps_per_second = max(last - step, 0) / passed
        self.samples_per_second = max(seen - samples, 0) / passed

    def _time_left(self, now: float) -> None:
        """Estimate from all steps but the first, which compiles; including validation."""
        source = self._source
        if self._first is None or source.step < self._first[1]:
            self._first = (now, source.step) if source.step != self._begun else None
        elif source.total_steps and source.step > self._first[1]:
            since, step = self._first
            left = max(source.total_steps - source.step, 0)
            self.seconds_left = left * (now - since) / (source.step - step)


def bar_line(
    source: ProgressSource, meter: ProgressRates, width: int, style: tuple[bool, bool]
) -> str:
    """Return the bar with as many facts as fit, the first of ``_facts`` with priority."""
    head = f"{_epoch(source)} " if source.phase == "train" else f"{source.phase} {_epoch(source)} "
    total = source.total_steps
    steps = f" {source.step}/{total}" if total else f" step {source.step}"
    tail, room = steps, width - width_of(head) - (6 if total else 0)
    for fact in _facts(source, meter):
        if width_of(tail) + 2 + width_of(fact) <= room:
            tail += "  " + fact
    if not total:
        return clip(head + tail[1:], width)
    length = min(width - width_of(head) - width_of(tail), 30)
    return (
        clip(head.rstrip() + tail, width)
        if length < 4
        else (head + _bar(min(source.step / total, 1.0), length, style) + tail)
    )


def plain_line(source: ProgressSource, meter: ProgressRates) -> str:
    """``epoch 3/10  step 300/1000  loss 0.123  850 samples/s  ETA 2m10s  1.25 GiB``"""
    total = f"/{source.total_steps}" if source.total_steps else ""
    parts = [_epoch(source), f"step {source.step}{total}", *_values(source)]
    if meter.samples_per_second:
        parts.append(f"{amount(meter.samples_per_second)} samples/s")
    parts += [_eta(source, meter), meter.memory()]
    return "  ".join(part for part in parts if part)


def _facts(source: ProgressSource, meter: ProgressRates) -> list[str]:
    """Return what to show, the most important first."""
    values = _values(source)
    rate = meter.steps_per_second
    speed = (f"{rate:.3g} it/s" if rate >= 1 else f"{1 / rate:.3g} s/it") if rate else ""
    seen = meter.samples_per_second
    samples = f"{amount(seen)} smp/s" if seen else ""
    facts = [*values[:1], _eta(source, meter), speed, samples, meter.memory(), *values[1:]]
    return [fact for fact in facts if fact]


def _values(source: ProgressSource) -> list[str]:
    clean = ((_printable(name), value) for name, value in list(source.values.items()))
    return [f"{name} {_number(value)}" for name, value in clean]


def _number(value: Any) -> str:
    """Return four digits; anything but a number is shown as it is, since the bar must not fail."""
    try:
        return f"{value:.4g}"
    except (TypeError, ValueError):
        return _printable(str(value))


def _epoch(source: ProgressSource) -> str:
    return f"epoch {source.epoch}" + (f"/{source.epochs}" if source.epochs else "")


def _eta(source: ProgressSource, meter: ProgressRates) -> str:
    if meter.seconds_left is not None:
        return f"ETA {format_seconds(meter.seconds_left)}"
    elapsed = time.perf_counter() - source.started
    return "" if source.total_steps else f"{format_seconds(elapsed)} so far"


def _bar(share: float, length: int, style: tuple[bool, bool]) -> str:
    color, unicode = style
    full, half, empty = ("━", "╸", "─") if unicode else ("#", "", "-")
    halves = int(2 * share * length)
    done = full * (halves // 2) + (half if halves % 2 else "")
    rest = empty * (length - len(done))
    return f"\x1b[32m{done}\x1b[0;2m{rest}\x1b[0m" if color else done + rest


def memory_in_use(device: Any) -> int:
    """Return bytes: the peak of PyTorch's allocator on a GPU, else the process's memory."""
    torch = sys.modules.get("torch")
    if torch is not None and str(device).startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def format_seconds(seconds: float) -> str:
    """``45s``, ``2m10s``, ``1h05m``, ``2d03h``: shorter than elsewhere, since a bar is short."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{second:02}s"
    hours, minute = divmod(minutes, 60)
    return f"{hours}h{minute:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def width_of(text: str) -> int:
    """Return the columns on the screen: colors take none, wide characters two."""
    plain = _COLOR.sub("", text)
    if plain.isascii():
        return len(plain)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in plain)
    return len(plain) + wide - sum(unicodedata.combining(each) > 0 for each in plain)


def clip(text: str, width: int) -> str:
    """Cut the text to this many columns."""
    while text and width_of(text) > width:
        text = text[:-1]
    return text


def _printable(name: str) -> str:
    return "".join(each for each in name if each.isprintable())
