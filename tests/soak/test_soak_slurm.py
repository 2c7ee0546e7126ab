"""Trainings on a real cluster: preempted, signalled, requeued, their nodes switched off, out of time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from soak_rig import SCRIPT, Tallies, Tally, Training, differences, result

from command_rig import until

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.torch, pytest.mark.timeout(1200)]
WORDS = ["40", "0.04", "0"]
"""Epochs, pause in each step, loader workers."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One of its own, as its nodes are switched off."""
    from allranks.cluster.sandbox.testing import sandbox_for_tests
    from allranks.errors import MissingDependencyError

    try:
        with sandbox_for_tests(nodes=3, grace=20) as sandbox:
            yield sandbox
    except MissingDependencyError as error:
        pytest.skip(f"no Slurm here: {str(error).splitlines()[0]}")


class Submitted(Training):
    """A run of the script by `allranks submit`, on two nodes."""

    def __init__(self, folder: Path, env: dict[str, str], cluster: Any, words: list[str]) -> None:
        super().__init__(folder, env, words, 2)
        self.cluster = cluster

    def submit(self, *options: str) -> None:
        """Into the queue; the command returns at once."""
        size = ["--nodes", "2", "--nprocs", "2", "--cpus-per-task", "1", "--memory", "1G"]
        self._command(["submit", *size, "--requeue", *options, str(SCRIPT), *self.words])
        assert self.wait() == 0, self.said

    @property
    def job(self) -> str:
        """The job in which the run goes on now."""
        told = json.loads(self._asked("ps", "--json", self.run.name))
        return str(told[0]["job_id"])

    @property
    def state(self) -> str:
        return str(json.loads(self._asked("ps", "--json", self.run.name))[0]["state"])

    def _asked(self, *words: str) -> str:
        import subprocess
        import sys

        done = subprocess.run(
            [sys.executable, "-m", "allranks", *words], cwd=self.folder, env=self.env,
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    @property
    def ended(self) -> bool:
        return self.progress().get("outcome") == "finished"

    @property
    def said(self) -> str:
        logs = "".join(p.read_text(errors="replace") for p in self.run.glob("slurm-*.out"))
        return super().said + logs


def _slurm(training: Submitted, *words: str) -> str:
    done = training.cluster.run(*words)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def signalled(training: Submitted, dice: random.Random) -> None:
    """What `--signal` does before the limit."""
    _slurm(training, "scancel", "--signal=USR1", training.job)


def preempted(training: Submitted, dice: random.Random) -> None:
    """A job of a better partition needs all nodes."""
    how = ["--partition=main", "--nodes=3", "--exclusive", "--time=1", "--output=/dev/null"]
    _slurm(training, "sbatch", *how, "--wrap", "sleep 1")


def put_back(training: Submitted, dice: random.Random) -> None:
    """`scontrol requeue` by an operator."""
    _slurm(training, "scontrol", "requeue", training.job)


def node_off(training: Submitted, dice: random.Random) -> None:
    """The power of one of its nodes fails; it comes back later."""
    attempt = training.attempt()
    assert attempt is not None
    hosts = {json.loads(p.read_text())["host"] for p in attempt.glob("ranks/rank-*.json")}
    node = dice.choice(sorted(hosts))
    training.cluster.kill_node(node)
    until(lambda: training.attempt() != attempt, 120)
    training.cluster.start_node(node)


ENDS: dict[str, Callable[[Submitted, random.Random], None]] = {
    "USR1 (Slurm)": signalled,
    "preempted (Slurm)": preempted,
    "requeued (Slurm)": put_back,
    "node switched off": node_off,
}


def _right(folder: Path, env: dict[str, str], words: list[str]) -> dict[str, Any]:
    """What an undisturbed training on this machine comes to."""
    training = Training(folder / "right", env, words, 2)
    training.start()
    assert training.wait() == 0, training.said
    return result(training.run)


def _until_again(training: Submitted, before: Path | None) -> None:
    def again() -> bool:
        return training.attempt() != before and bool(training.progress().get("began"))

    until(lambda: training.ended or again(), 180)


LANES = [*(("ddp", kind) for kind in ENDS), ("deepspeed", "USR1 (Slurm)")]


@pytest.mark.parametrize(("strategy", "kind"), LANES)
def test_ends_on_a_cluster(
    strategy: str, kind: str, cluster: Any, clean_env: dict[str, str], tmp_path: Path,
    tallies: Tallies, dice: random.Random,
) -> None:  # fmt: skip
    if strategy == "deepspeed":
        pytest.importorskip("deepspeed")
    words = [strategy, *WORDS]
    right = _right(tmp_path, clean_env, words)
    training = Submitted(tmp_path / "disturbed", {**clean_env, **cluster.env}, cluster, words)
    training.submit("--partition", "low", "--time", "20m")
    tally = tallies.setdefault(kind, Tally())
    for _ in range(2):
        until(lambda: training.ended or training.progress().get("began"), 120)
        time.sleep(dice.uniform(0, 3))
        if training.ended:
            break
        attempt, reached = training.attempt(), training.last_step()
        tally.kills += 1
        tally.torn += bool(training.under_way())
        ENDS[kind](training, dice)
        _until_again(training, attempt)
        tally.steps_lost.append(max(0, reached - int(training.progress()["first_step"])))
    until(lambda: training.ended, 240)
    until(lambda: training.state == "COMPLETED", 60)
    found = differences(right, result(training.run))
    tally.wrong += bool(found)
    assert not found, "\n".join([*found[:20], training.said[-4000:]])


def test_more_time_than_a_job_has(
    cluster: Any, clean_env: dict[str, str], tmp_path: Path, tallies: Tallies
) -> None:
    """A minute per job, and a training of two and a half: a chain that looks like one run."""
    words = ["ddp", "40", "0.35", "0"]
    quick = Training(tmp_path / "quick", clean_env, [*words[:2], "0.0", "0"], 2)
    quick.start()
    assert quick.wait() == 0, quick.said
    training = Submitted(tmp_path / "slow", {**clean_env, **cluster.env}, cluster, words)
    training.submit("--time", "1m")
    until(lambda: training.ended, 600)
    until(lambda: training.state == "COMPLETED", 60)
    tallies["time limit (Slurm)"] = Tally(kills=len([*training.run.glob("attempts/[0-9]*")]) - 1)
    assert tallies["time limit (Slurm)"].kills >= 1
    assert not differences(result(quick.run), result(training.run)), training.said[-4000:]
