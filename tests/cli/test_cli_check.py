"""allranks check: its list, and the check of signals on this machine."""

from __future__ import annotations

import json

from allranks.observe.check.signal_check import (
    RankSignals,
    SignalCheckResult,
    early_signal,
    result_advice,
    result_table,
)
from command_rig import Allranks


def test_alone_it_lists_what_it_can_check(allranks: Allranks) -> None:
    done = allranks("check")
    assert done.returncode == 0
    assert "allranks check --signal" in done.stdout


def test_signals_on_this_machine(allranks: Allranks) -> None:
    """Through `allranks run`, with two processes beside each rank that must live on."""
    done = allranks("check", "--signal", "--launcher", "srun", "--json", SLURM_CONF="/nowhere")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["where"] == "this machine"
    assert [rank["workers"] for rank in found["ranks"]] == [2, 2]
    assert all(set(rank["arrived"]) == {"SIGUSR1", "SIGTERM"} for rank in found["ranks"])


def test_a_signal_that_is_none_is_told(allranks: Allranks) -> None:
    assert (
        early_signal("B:USR1@60") == early_signal("SIGUSR1@9") == early_signal("10@9") == "SIGUSR1"
    )
    done = allranks("check", "train.py")
    assert done.returncode == 2


def test_what_did_not_arrive_is_told_with_what_to_do() -> None:
    there = RankSignals(0, "node1", 100.0, 160.0, {"SIGUSR1": 130.0, "SIGTERM": 140.0}, 2)
    deaf = RankSignals(1, "node2", 100.0, 160.0, {"SIGTERM": 140.0}, 1)
    found = SignalCheckResult("job 7", "mpirun", ["SIGUSR1", "SIGTERM"], [there, deaf])
    assert not found.ok
    rows = result_table(found)
    assert "30 s before the end" in rows[1]
    assert "did not arrive" in rows[2]
    said = "\n".join(result_advice(found))
    assert "SIGUSR1 did not reach rank 1." in said
    assert "--signal B:USR1@120" in said
    assert "Processes beside rank 1 died of a signal" in said
    late = RankSignals(1, "node2", 135.0, 160.0, {"SIGTERM": 140.0}, 2)
    said = "\n".join(
        result_advice(SignalCheckResult("job 7", "srun", ["SIGUSR1", "SIGTERM"], [there, late]))
    )
    assert "Rank 1 started after it was sent. Give the job more time: --time 3m." in said
    good = SignalCheckResult("job 7", "srun", ["SIGUSR1"], [there])
    assert result_advice(good) == ["Every signal reached the rank in job 7."]
    assert (
        "did not start"
        in result_advice(SignalCheckResult("job 7", "srun", ["SIGUSR1"], [RankSignals(0)]))[0]
    )
