"""Signals to ``allranks run`` reach its launcher, and a launcher that ignores them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_rig import until

WATCH = """
import subprocess, sys
from allranks.schedulers.launcher_watch import LauncherWatch
watch = LauncherWatch(subprocess.Popen([sys.executable, "launcher.py"]))
print(watch.wait(), watch.is_stopped)
"""
LAUNCHER = """
import signal, sys, time
from pathlib import Path
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), lambda number, _: Path(str(int(number))).touch())
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
Path("ready").touch()
while True:
    time.sleep(0.05)
"""


class Watched:
    """A process that waits for a launcher which ignores INT and TERM, and exits with 7 at USR1."""

    def __init__(self, folder: Path, **extra: str) -> None:
        self.folder = folder
        (folder / "launcher.py").write_text(LAUNCHER)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ALLRANKS", "SLURM"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WATCH], cwd=folder, env=kept | extra, stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        until((folder / "ready").exists)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def has_reached_launcher(self, number: int) -> None:
        until((self.folder / str(int(number))).exists)

    def result(self) -> str:
        return self.process.communicate(timeout=30)[0].strip()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    os.killpg(found.process.pid, signal.SIGKILL) if found.process.poll() is None else None


def test_a_user_signal_is_forwarded_and_is_no_stop(watched: Watched) -> None:
    watched.send(signal.SIGUSR1)
    assert watched.result() == "7 False"


def test_a_second_stop_kills_but_a_repeated_term_does_not(watched: Watched) -> None:
    watched.send(signal.SIGTERM)
    watched.has_reached_launcher(signal.SIGTERM)
    time.sleep(1.1)  # stops within a second are one
    watched.send(signal.SIGTERM)
    time.sleep(0.2)
    assert watched.process.poll() is None
    watched.send(signal.SIGINT)
    assert watched.result() == "137 True"


@pytest.mark.slow
def test_a_launcher_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ALLRANKS_GRACE="0")
    watched.send(signal.SIGINT)
    watched.has_reached_launcher(signal.SIGINT)
    assert watched.result() == "137 True"
