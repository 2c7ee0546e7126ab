"""Runs long commands: their output is logged, and a signal ends them with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from allranks.core.shell import join

GRACE = 5.0
"""Seconds between TERM and KILL."""

OnLine = Callable[[str], None]


def run_logged(
    words: Sequence[str],
    log: IO[str],
    env: Mapping[str, str],
    cwd: Path | None = None,
    on_line: OnLine | None = None,
) -> int:
    """Run a command in its own session; Ctrl-C ends it with all its children."""
    log.write(f"$ {join(words)}\n")
    log.flush()
    process = subprocess.Popen(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)
            log.flush()
            if on_line:
                on_line(line.rstrip("\n"))
        return process.wait()
    except BaseException:
        kill_process_group(process)
        raise
    finally:
        process.stdout.close()


def kill_process_group(process: subprocess.Popen[str]) -> None:
    """Send TERM to all processes of the group, then KILL to those that are left."""
    for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Make TERM and HUP end this process as Ctrl-C does: through the code that cleans up."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver Ctrl-C, TERM and HUP after the block: for the seconds of an installation."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        os.kill(os.getpid(), received[0])
