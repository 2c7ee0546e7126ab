"""Ranks that a script started end together, however one of them ends."""

import re
import signal
from pathlib import Path

import pytest
from spawn_rig import Start


@pytest.mark.parametrize(
    ("deed", "expected", "told"),
    [
        ("exit 3", 3, "ended with exit code 3; ending the others"),
        pytest.param(
            "raise", 1, "ended with exit code 1; ending the others", marks=pytest.mark.torch
        ),
        ("crash", 137, "ended with signal SIGKILL; ending the others"),
    ],
)
def test_a_failing_rank_ends_all_with_its_code(tmp_path, deed, expected, told):
    """The caller waits in a collective that the failed rank will never join."""
    torch = {"PROBE_TORCH": "1"} if deed == "raise" else {}
    started = Start(tmp_path, "3", "wait", deed, "wait", **torch)
    code, _, err = started.end()
    assert code == expected, err
    line = next(line for line in err.splitlines() if told in line)
    assert line.startswith("rank 1 (pid ")
    assert Path(line.rpartition("Its output: ")[2]).read_text().count("rank 1 is here") == 1
    if deed == "raise":
        assert "[rank 1] ValueError: no such dataset" in err
    started.until_nothing_is_left()


def test_a_caller_that_works_on_alone_is_ended_too(tmp_path):
    started = Start(tmp_path, "2", "sleep", "exit 3")
    code, _, err = started.end()
    assert code == 3
    assert "rank 1" in err


def test_the_last_lines_of_a_rank_that_said_nothing_on_stderr(tmp_path):
    code, _, err = Start(tmp_path, "2", "sleep", "quiet 3").end()
    assert code == 3
    assert "[rank 1] the last words\n" in err


def test_a_rank_that_fails_after_the_caller_is_done(tmp_path):
    code, out, err = Start(tmp_path, "2", "nothing", "exit 3").end()
    assert code == 3
    assert out == "rank 0 is here\n"
    assert re.search(r"rank 1 \(pid \d+\) ended with exit code 3", err)


def test_a_caller_that_fails_ends_the_others_in_silence(tmp_path):
    started = Start(tmp_path, "3", "raise", "wait")
    code, _, err = started.end()
    assert code == 1
    assert err.count("Traceback") == 1
    assert "ValueError: no such dataset" in err
    assert "[rank 1]" not in err
    started.until_nothing_is_left()


def test_a_killed_caller_leaves_nothing(tmp_path):
    started = Start(tmp_path, "3", "sleep")
    started.until_ranks(3)
    assert len(started.left()) == 3
    started.process.send_signal(signal.SIGKILL)
    started.until_nothing_is_left()
    started.end()


def test_a_terminated_caller_leaves_nothing(tmp_path):
    started = Start(tmp_path, "2", "sleep")
    started.until_ranks(2)
    started.process.send_signal(signal.SIGTERM)
    assert started.end()[0] == -signal.SIGTERM
    started.until_nothing_is_left()


def test_ctrl_c_is_one_clean_end(tmp_path):
    started = Start(tmp_path, "3", "sleep")
    started.until_ranks(3)
    started.process.send_signal(signal.SIGINT)
    code, _, err = started.end()
    assert code == -signal.SIGINT
    assert err.count("KeyboardInterrupt") == 1
    assert "[rank 1]" not in err
    started.until_nothing_is_left()
