"""What ``allranks check --signal`` runs on every rank: wait, and record which signals arrive.

It behaves like training: handlers that set a flag, two processes shielded like loader workers, and an
exit of its own after TERM.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from allranks.runtime.preemption.job_end_time import find_job_end
from allranks.runtime.preemption.signal_flags import STOP_SIGNALS
from allranks.runtime.preemption.worker_signals import shield_process
from allranks.runtime.world import world

_WORKERS = 2
_AFTER_TERM = 1.0
"""Seconds in which a signal that kills the workers would have done so."""
_LONGEST = 600.0


def main() -> None:
    """Record signals until TERM has come, or for ten minutes."""
    here = world()
    folder = Path(os.environ["ALLRANKS_ATTEMPT_DIR"]) / "signals"
    folder.mkdir(exist_ok=True)
    received: list[tuple[str, float]] = []
    for number in STOP_SIGNALS:
        signal.signal(
            number, lambda which, _: received.append((signal.Signals(which).name, time.time()))
        )
    workers = [_start_worker() for _ in range(_WORKERS)]
    end = find_job_end(os.environ, may_ask=here.is_main)
    with (folder / f"rank-{here.rank:05d}.jsonl").open("a") as file:
        _write(file, host=here.host, ready=time.time(), end=None if end is None else end.time)
        _wait(received, file)
        _write(file, workers=sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in workers))
    for pid in workers:
        os.kill(pid, signal.SIGTERM)


def _wait(received: list[tuple[str, float]], file: Any) -> None:
    written, until = 0, time.monotonic() + _LONGEST
    while time.monotonic() < until:
        time.sleep(0.1)
        for name, when in received[written:]:
            written += 1
            _write(file, signal=name, time=when)
            if name == "SIGTERM":
                until = min(until, time.monotonic() + _AFTER_TERM)


def _start_worker() -> int:
    parent = os.getpid()
    if pid := os.fork():
        return pid
    shield_process(parent)
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _write(file: Any, **facts: Any) -> None:
    file.write(json.dumps(facts) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
