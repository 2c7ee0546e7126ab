"""One point on this machine, or across the allocation around, while a line tells how far it is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks.job.plan import Plan
from allranks.observe.scaling.point_states import CONSOLE, progress_text
from allranks.observe.scaling.study_file import RUNNING, Point, Study
from allranks.runs.run import Run
from allranks.schedulers.foreground import ForegroundScheduler


def run_point(
    study: Study, point: Point, plan: Plan, python: str, scheduler: ForegroundScheduler
) -> Run:
    """Run a point to its end. KeyboardInterrupt when it was told to end."""
    run = scheduler.prepare(plan, python)
    _begin(study, point, run)  # before it starts, so that a killed study knows of it
    with _ticking(run, study.axis.count(point.size)), _quiet(run.path / CONSOLE):
        scheduler.execute(plan, run, python=python)
    last = run.last_attempt
    if last is not None and last.outcome == "cancelled":
        raise KeyboardInterrupt
    return run


def _begin(study: Study, point: Point, run: Run) -> None:
    point.run, point.state, point.why = str(run.path), RUNNING, ""
    study.save()


@contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """What this process and those it starts write goes to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, own in zip((1, 2), kept, strict=True):
            os.dup2(own, number)
            os.close(own)
        os.close(file)


@contextmanager
def _ticking(run: Run, what: str) -> Iterator[None]:
    """On a terminal, a line that shows the steps done.

    A process and no thread: ranks are forked from a process that must have none.
    """
    if not os.isatty(2):
        yield
        return
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _tick(run, what, parent)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.write(2, b"\r\x1b[K")


def _tick(run: Run, what: str, parent: int) -> None:
    """The line, until it is killed or nobody is there to do so."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        began = time.monotonic()
        while os.getppid() == parent:
            far = progress_text(run) or "running"
            text = f"  {what}: {far}, {time.monotonic() - began:.0f} s"
            os.write(2, b"\r\x1b[K" + text.encode())
            time.sleep(0.5)
    finally:
        os._exit(0)
