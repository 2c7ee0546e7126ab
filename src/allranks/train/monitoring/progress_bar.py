"""The progress bar of rank 0, or plain lines without a terminal.

A background thread reads the training state and draws it a few times a second, so it costs a training step
nothing. Everything is one line that fits the terminal. The cursor is never hidden, so nothing is left to
restore when the process is killed.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TextIO

from allranks.train.monitoring.progress_line import (
    ProgressRates,
    ProgressSource,
    bar_line,
    plain_line,
    width_of,
)

REDRAW_SECONDS = 0.125
PLAIN_SECONDS = 10.0
PLAIN_LONGEST = 300.0


class ProgressBar:
    """Draws until ``stop``; also a context manager. ``say`` prints without breaking the bar."""

    def __init__(
        self,
        source: ProgressSource,
        *,
        enabled: str | bool = "auto",
        stream: TextIO | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._source = source
        self._stream = stream or sys.stderr
        self._out = out
        self.kind = _kind(enabled, self._stream)
        self._rates = ProgressRates(source)
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._drawn = 0
        self._said_at, self._said_tenth, self._said_step = 0.0, 0, -1

    def __enter__(self) -> ProgressBar:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> ProgressBar:
        """Begin drawing."""
        if self.kind != "off" and self._thread is None:
            self._said_at, self._process = time.perf_counter(), os.getpid()
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="allranks-progress", daemon=True)
            self._thread.start()
            atexit.register(self.stop)  # a thread that writes at exit would abort the interpreter
        return self

    def stop(self) -> None:
        """Draw the last state and keep it on the screen. A second call does nothing."""
        if (
            self._thread is None or os.getpid() != self._process
        ):  # a forked child has no such thread
            return
        self._end.set()
        self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)
        with self._lock:
            self._tick(last=True)
            if self._drawn:
                self._write("\n")
                self._drawn = 0

    def say(self, text: str) -> None:
        """Print text on a line of its own, above the bar."""
        with self._lock:
            shown = self._drawn
            self._clear()
            out = self._out or sys.stdout
            out.write(text + "\n")
            out.flush()
            if shown:
                self._draw_bar()

    def _run(self) -> None:
        while not self._end.wait(REDRAW_SECONDS):
            with self._lock:
                self._tick()

    def _tick(self, last: bool = False) -> None:
        now = time.perf_counter()
        self._rates.update(now)
        if self.kind == "off":
            return
        if self.kind == "bar":
            self._draw_bar()
        elif self._is_line_due(now) or (last and self._said_step != self._source.step):
            self._said_at, self._said_step = now, self._source.step
            self._said_tenth = self._rates.tenths()
            self._write(plain_line(self._source, self._rates) + "\n")

    def _is_line_due(self, now: float) -> bool:
        """Whether a line is due: every tenth of the steps, less often in between, never within ten seconds."""
        waited = now - self._said_at
        longest = min(max(PLAIN_SECONDS, (now - self._source.started) / 10), PLAIN_LONGEST)
        further = self._rates.tenths() > self._said_tenth
        return self._source.step > 0 and waited >= (PLAIN_SECONDS if further else longest)

    def _draw_bar(self) -> None:
        try:
            width, style = _columns(self._stream) - 1, _style(self._stream)
        except ValueError:  # the stream is closed
            self._disable()
            return
        line = bar_line(self._source, self._rates, width, style)
        cells = width_of(line)
        self._write("\r" + line + " " * (min(self._drawn, width) - cells))
        self._drawn = cells

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r" + " " * min(self._drawn, _columns(self._stream) - 1) + "\r")
            self._drawn = 0

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream closed
            self._disable()

    def _disable(self) -> None:
        self.kind, self._drawn = "off", 0
        self._end.set()


def _kind(enabled: str | bool, stream: TextIO) -> str:
    """Return "bar", "plain" or "off". True is for the bar without a terminal, as in notebooks."""
    if enabled is False:
        return "off"
    dumb = os.environ.get("TERM") == "dumb"
    return "bar" if not dumb and (enabled is True or stream.isatty()) else "plain"


def _style(stream: TextIO) -> tuple[bool, bool]:
    """Return whether colors and line-drawing characters may be used."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return stream.isatty() and not os.environ.get("NO_COLOR"), encoding.startswith("utf")


def _columns(stream: TextIO) -> int:
    """Return the current width: COLUMNS, the terminal's own, or 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
