"""A warning may come at any time, the very end included."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal
from allranks.runtime.preemption.signal_flags import SignalFlags

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        print("still here", flush=True)

assert SignalFlags().watch()
late = Late()  # its end comes with the interpreter's, after the handlers are gone
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_warning_in_the_last_moment_kills_no_finished_rank(name: str) -> None:
    script = SCRIPT.format(name=name)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr
