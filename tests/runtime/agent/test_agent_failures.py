"""The first error: found in the tail, told in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.runs.attempt import Failure
from allranks.runtime.agent.failures import Tail, explain_failure, last_traceback, summary

TRACE = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    1/0
ZeroDivisionError: division by zero"""


def found(text: str) -> str:
    result = last_traceback(text.splitlines())
    return "\n".join(result[1]) if result else ""


def test_the_last_traceback() -> None:
    assert found(
        "noise\n" + TRACE + "\nlog\nTraceback (most recent call last):\n  x\nKeyError: 1"
    ) == ("Traceback (most recent call last):\n  x\nKeyError: 1")
    assert found("nothing here") == ""


def test_chained_ones_stay_together() -> None:
    middle = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    assert found("old\n" + TRACE + middle + TRACE) == TRACE + middle + TRACE


def test_torch_marks_are_taken_off() -> None:
    marked = "\n".join(f"[rank3]: {line}" for line in TRACE.splitlines())
    noise = "\n[rank3]:[W1115 03:00:00.1 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group()"
    assert found(marked + noise) == TRACE


def test_messages_of_many_lines() -> None:
    text = TRACE + "\nsecond line\n\nthird line\n"
    assert found(text) == text.rstrip()


def said_by(script: Path) -> str:
    """What a rank that runs this script is said to have failed of."""
    done = subprocess.run([sys.executable, script], capture_output=True, timeout=100)
    err = Tail()
    err.add(done.stderr, 1.0)
    return explain_failure(Tail(), err, True, 2.0)[1]


def test_a_long_traceback_of_a_data_loaders_worker(tmp_path: Path) -> None:
    """Told within the message of another exception, and longer than messages are."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("""
from torch.utils.data import DataLoader

def load(item, depth=12):
    return {}["shard"] if not depth else load(item, depth - 1) if depth % 2 else again(item, depth)

def again(item, depth):
    return load(item, depth - 1)

class Data:
    def __len__(self):
        return 1

    def __getitem__(self, item):
        return load(item)

list(DataLoader(Data(), num_workers=1))
""")
    text = said_by(script)
    assert text.count("in load") == 13
    assert "Caught KeyError in DataLoader worker process 0." in text
    assert Failure(0, traceback=text).error == "KeyError: 'shard'"


def test_what_python_says_after_the_error_is_not_the_error(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import threading

class Workers:
    def __del__(self):
        assert False, "can only test a child process"

def fail():
    raise OSError("aside")

before = threading.Thread(target=fail)
before.start()
before.join()
workers = Workers()
threading.Thread(target=lambda: (threading.main_thread().join(), fail())).start()
raise ValueError("the real one")
""")
    text = said_by(script)
    assert text.startswith("Traceback")
    assert text.endswith("ValueError: the real one")
    assert Failure(0, traceback=text).error == "ValueError: the real one"


def test_without_a_traceback_the_last_lines() -> None:
    out, err = Tail(), Tail()
    out.add(b"".join(b"o%d\n" % i for i in range(50)), 1.0)
    assert explain_failure(out, err, False, 9.0) == (9.0, "\n".join(f"o{i}" for i in range(30, 50)))
    err.add(b"bad\n", 2.0)
    assert explain_failure(out, err, False, 9.0) == (9.0, "bad")


def test_an_exception_counts_from_its_first_line() -> None:
    out, err = Tail(), Tail()
    err.add(TRACE.encode() + b"\n", 5.0)
    assert explain_failure(out, err, True, 9.0) == (5.0, TRACE)
    assert explain_failure(out, err, False, 9.0)[0] == 9.0


def test_the_tail_is_bounded() -> None:
    tail = Tail()
    for i in range(1000):
        tail.add(b"%05d" % i * 200 + b"\n", float(i))
    assert len(tail.lines()) < 200
    assert tail.lines()[-1][0] == 999.0


def test_the_earliest_of_many(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    for rank, second in ((0, 30), (3, 12), (5, 31)):
        facts = {"rank": rank, "local_rank": rank % 2, "host": "node2", "pid": 1, "exit_code": 1,
                 "signal": None, "time": f"2026-01-01T00:00:{second}.000000Z",
                 "traceback": f"T{rank}", "command": []}  # fmt: skip
        (tmp_path / f"failures/rank-{rank:05d}.json").write_text(json.dumps(facts))
    (tmp_path / "failures/rank-00009.json").write_text("{half")
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/rank-00003.json").write_text('{"start": "2026-01-01T00:00:00.000000Z"}')
    assert summary(tmp_path).splitlines() == [
        "first error: rank 3 (local rank 1) on node2, exit code 1, 12 s after start",
        "T3",
        "also failed: ranks 0, 5",
    ]
    assert summary(tmp_path / "none") == ""
