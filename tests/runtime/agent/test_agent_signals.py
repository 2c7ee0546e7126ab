"""Signals are for the ranks: launchers between them and us are kept out of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from agent_rig import AGENT, Rig

from allranks.runtime.agent.linux_processes import agents_below
from allranks.runtime.agent.supervisor import read_grace
from command_rig import until

RANK = """
    import os, signal, sys, time
    got = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda which, _: got.append(which))
    open("part", "w").write(str(os.getpid()))
    os.rename("part", "ready")
    while signal.SIGTERM not in got:
        time.sleep(0.02)
    print("got", sorted(set(got)), flush=True)
    for number in set(got):  # the same ones, passed on by the agent, may come as Python ends
        signal.signal(number, signal.SIG_IGN)
"""

LAUNCHER = """
    import signal, subprocess, sys
    def die(*_):
        child.kill()
        sys.exit(1)
    signal.signal(signal.SIGTERM, die)
    child = subprocess.Popen(sys.argv[1:])
    sys.exit(child.wait())
"""


def test_a_launcher_with_blocked_signals_and_ranks_that_get_them(rig: Rig) -> None:
    """As in a Slurm step: every process is signalled, the launcher would kill its rank."""
    rank = [*AGENT, "rank", "--", sys.executable, rig.script(RANK)]
    launcher = [sys.executable, rig.script(LAUNCHER, "launcher.py"), *rank]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    process = rig.start("block-signals", "--", *launcher, **alone)
    until((rig.folder / "ready").exists)
    (agent,) = agents_below(process.pid)
    child = int((rig.folder / "ready").read_text())
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for pid in (process.pid, agent, child):
            os.kill(pid, number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "got [10, 15]\n"), err


def test_a_signal_that_a_launcher_ignores_reaches_the_rank(rig: Rig) -> None:
    """An ignored signal stays so across exec; the rank shall hear it all the same."""
    path = rig.script("import signal\nprint(*[signal.getsignal(n) for n in (10, 12, 15)])")
    words = " ".join([*AGENT, "rank", "--", sys.executable, path])
    done = subprocess.run(
        ["bash", "-c", f"trap '' USR1 USR2 TERM; exec {words}"], cwd=rig.folder,
        env=rig.env | {"RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "0", "0"] or done.stdout.count("SIG_DFL") == 3, done


def test_block_signals_reports_a_missing_command(rig: Rig) -> None:
    done = rig.run("block-signals", "--", "no-such-launcher", "--nproc", "2")
    assert done.returncode == 127
    assert "allranks: cannot run 'no-such-launcher'" in done.stderr


@pytest.mark.parametrize(
    ("env", "grace"),
    [
        ({}, (10, 60)),
        ({"SLURM_JOB_ID": "1"}, (10, None)),
        ({"SLURM_JOB_ID": "1", "ALLRANKS_GRACE": "3"}, (3, 3)),
    ],
)
def test_the_grace_time(env: dict[str, str], grace: tuple[float, float | None]) -> None:
    assert tuple(read_grace(env)) == grace
