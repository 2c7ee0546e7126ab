"""The thread: what it writes of real processes, how it ends, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.errors import RunNotFoundError
from allranks.runtime.telemetry.jsonl_writer import JsonLinesWriter
from allranks.runtime.telemetry.node_metrics import NodeMetrics
from allranks.runtime.telemetry.sampler import (
    SamplingInterval,
    read_interval,
    sample_here,
    start_sampler,
)
from command_rig import until

MB = 1 << 20
OFTEN = {"ALLRANKS_SAMPLE": "0.2"}
BUSY = """
import sys
held = bytearray(b"x") * (200 << 20)
print("ready", flush=True)
sys.stdin.readline()
while True:
    pass
"""
WORKERS = """
import subprocess, sys
sys.stdin.readline()
burn = "import time\\nwhile time.process_time() < 0.15: pass"
for _ in range(4):
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
print("ready", flush=True)
sys.stdin.read()
"""


def lines(folder: Path, name: str = "node-00000") -> list[dict[str, Any]]:
    path = folder / "nodes" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def samples(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["kind"] == "sample"]


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def _cpu_seconds(pid: int, *fields: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(words[field]) for field in fields) / os.sysconf("SC_CLK_TCK")


def _let_begin(child: subprocess.Popen[str], folder: Path) -> float:
    """Its work, once it is sampled; what it had used before."""
    until(lambda: bool(samples(folder)))
    assert child.stdin is not None
    before = _cpu_seconds(child.pid, 11, 12, 13, 14)
    child.stdin.write("begin\n")
    child.stdin.flush()
    return before


def _counted(found: list[dict[str, Any]]) -> float:
    return sum(float(sample["cpu"]) * float(sample["seconds"]) for sample in found)


@pytest.mark.parametrize("child", [BUSY], indirect=True, ids=["busy"])
def test_a_busy_process_that_holds_memory(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert child.stdout is not None
    child.stdout.readline()
    said: list[str] = []
    sampler = start_sampler(tmp_path, 0, 0, 1, child.pid, said.append, env=OFTEN)
    assert sampler is not None
    before = _let_begin(child, tmp_path)
    until(lambda: len(samples(tmp_path)) >= 5)
    sampler.stop()
    spent = _cpu_seconds(child.pid, 11, 12) - before
    first = [line for line in lines(tmp_path) if line["kind"] == "node"][-1]
    found = samples(tmp_path)
    assert lines(tmp_path)[0]["kind"] == "node"
    assert (first["node"], first["host"], first["gpus"]) == (0, os.uname().nodename, [])
    assert first["cpus"] <= len(os.sched_getaffinity(0))
    times = [line["time"] for line in lines(tmp_path)]
    assert times == sorted(times)
    # As much as the process itself knows of: the machine may be busy with others.
    assert spent > 0
    assert _counted(found[1:]) == pytest.approx(spent, abs=0.1)
    assert all(200 * MB < sample["memory"] < 260 * MB for sample in found)
    assert all(sample["memory_node"] < first["memory_total"] for sample in found)
    assert all(sample["cpu_node"] >= 0 for sample in found)
    assert not said


@pytest.mark.parametrize("child", [WORKERS], indirect=True, ids=["workers"])
def test_workers_that_have_ended_count_too(child: subprocess.Popen[str], tmp_path: Path) -> None:
    sampler = start_sampler(tmp_path, 0, 0, 1, child.pid, print, env=OFTEN)
    assert sampler is not None
    before = _let_begin(child, tmp_path)
    assert child.stdout is not None
    child.stdout.readline()
    sampler.stop()
    spent = _cpu_seconds(child.pid, 11, 12, 13, 14) - before
    assert spent > 0.5
    assert _counted(samples(tmp_path)[1:]) == pytest.approx(spent, abs=0.1)


def test_the_last_sample_is_written_at_the_end_and_no_thread_is_left(tmp_path: Path) -> None:
    sampler = start_sampler(tmp_path, 3, 0, 1, os.getpid(), print, env={"ALLRANKS_SAMPLE": "3600"})
    assert sampler is not None
    until(lambda: len(lines(tmp_path, "node-00003")) == 2)
    time.sleep(0.2)
    sampler.stop()
    assert "allranks sampler" not in _threads()
    kinds = [line["kind"] for line in lines(tmp_path, "node-00003")]
    assert kinds == ["node", "sample", "sample"]


def test_its_threads_take_no_signals(tmp_path: Path) -> None:
    sampler = start_sampler(tmp_path, 0, 0, 1, os.getpid(), print, env=OFTEN)
    assert sampler is not None
    until(lambda: bool(samples(tmp_path)))
    (thread,) = (each for each in threading.enumerate() if each.name == "allranks sampler")
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    sampler.stop()
    for number in (1, 2, 10, 12, 15, 17, 18):  # HUP INT USR1 USR2 TERM CHLD CONT
        assert blocked >> (number - 1) & 1


def test_a_crash_in_a_thread_is_told_by_faulthandler() -> None:
    code = (
        "import ctypes, faulthandler\nfrom allranks.core.background_thread import background_thread\n"
        "faulthandler.enable()\nthread = background_thread(lambda: ctypes.string_at(0), 'x')\n"
        "thread.start()\nthread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in string_at" in done.stderr


def test_no_thread_is_left_in_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    said: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert start_sampler(tmp_path, 0, 0, 1, os.getpid(), said.append, env=OFTEN) is None
    assert said == ["the node is not sampled: can't start new thread"]


def test_a_folder_that_vanished_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    sampler = start_sampler(tmp_path / "gone", 0, 0, 1, os.getpid(), said.append, env=OFTEN)
    assert sampler is not None
    until(lambda: bool(said))
    sampler.stop()
    assert len(said) == 1
    assert "node-00000.jsonl: No such file or directory" in said[0]
    assert not (tmp_path / "gone").exists()


def test_a_folder_that_can_be_written_later_has_the_facts_too(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "attempt"
    sampler = start_sampler(folder, 0, 0, 1, os.getpid(), said.append, env=OFTEN)
    assert sampler is not None
    until(lambda: bool(said))
    folder.mkdir()
    until(lambda: bool(samples(folder)))
    sampler.stop()
    assert lines(folder)[-1]["kind"] == "sample"
    assert "node" in {line["kind"] for line in lines(folder)}


def test_a_full_disk_is_said_once_and_tried_again() -> None:
    said: list[str] = []
    full = JsonLinesWriter(Path("/dev/full"), said.append)
    for _ in range(3):
        assert not full.write({"kind": "sample"})
    assert said == ["cannot write /dev/full: No space left on device"]


def test_a_line_that_was_cut_short_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    path = tmp_path / "x.jsonl"
    out = JsonLinesWriter(path, said.append)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, text: write(fd, text[:5]))
        assert not out.write({"a": 1})
    assert out.write({"b": 2})
    out.close()
    assert path.read_text().splitlines() == ['{"a":', '{"b": 2}']
    assert len(said) == 1


def test_a_line_that_a_killed_writer_left_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b')
    for number in (2, 3):
        out = JsonLinesWriter(path, print)
        assert out.write({"c": number})
        out.close()
    assert path.read_text().splitlines() == ['{"a": 1}', '{"b', '{"c": 2}', '{"c": 3}']


def test_how_often(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("off", "OFF", "0", "no"):
        assert read_interval({"ALLRANKS_SAMPLE": text}, print) is None
    assert read_interval({}, print) == SamplingInterval()
    assert read_interval({"ALLRANKS_SAMPLE": "2.5"}, print) == SamplingInterval(2.5)
    assert read_interval({"ALLRANKS_SAMPLE": "5s"}, print) == read_interval(
        {"ALLRANKS_SAMPLE": "5"}, None
    )
    assert not capsys.readouterr().out
    for text in ("often", "-3", "nan", "inf", "s", "1e300", "86401"):
        assert read_interval({"ALLRANKS_SAMPLE": text}, print) == SamplingInterval()
        assert f"ALLRANKS_SAMPLE={text} is neither off" in capsys.readouterr().out


def test_what_is_wrong_for_all_is_said_by_the_first_alone(tmp_path: Path) -> None:
    said: list[str] = []
    wrong = {"ALLRANKS_SAMPLE": "often"}
    for node, local_rank in ((0, 0), (0, 1), (1, 0)):
        start = start_sampler(tmp_path, node, local_rank, 2, os.getpid(), said.append, env=wrong)
        assert start is not None
        start.stop()
    assert len(said) == 1


def test_what_ends_at_once_costs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(
        "allranks.runtime.telemetry.node_metrics.NodeMetrics", lambda *_: made.append(1)
    )
    sampler = start_sampler(tmp_path, 0, 0, 1, os.getpid(), print, env=OFTEN)
    assert sampler is not None
    sampler.stop()
    assert "allranks sampler" not in _threads()
    assert not made
    assert not (tmp_path / "nodes").exists()


def test_a_rate_over_next_to_nothing_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.runtime.telemetry.sampler.SHORTEST_SECONDS", 3600.0)
    monkeypatch.setattr("allranks.runtime.telemetry.sampler.FIRST_SECONDS", 3600.0)
    sample, sampled = NodeMetrics.sample, threading.Event()
    monkeypatch.setattr(NodeMetrics, "sample", lambda node: sampled.set() or sample(node))
    env = {"ALLRANKS_SAMPLE": "3600"}
    sampler = start_sampler(tmp_path, 0, 0, 1, os.getpid(), print, env=env)
    assert sampler is not None
    assert sampled.wait(30)
    sampler.stop()
    assert not lines(tmp_path)


def test_soon_then_often_then_seldom() -> None:
    usual = SamplingInterval()
    assert usual.next(100, 100) == 101
    assert usual.next(101, 100) == 106
    assert usual.next(699, 100) == 704
    assert usual.next(701, 100) == 716
    assert SamplingInterval(2.0).next(100, 100) == 101
    assert SamplingInterval(0.5).next(100, 100) == 100.5
    assert SamplingInterval(2.0).next(5000, 100) == 5002


def test_a_rank_samples_only_where_nobody_does(tmp_path: Path) -> None:
    def sampled(local_rank: int, **env: str) -> bool:
        folder = tmp_path / f"{local_rank}-{'-'.join(env)}" / "attempts" / "1"
        folder.mkdir(parents=True)
        with sample_here(lambda: folder, 0, local_rank, 2, print, {**OFTEN, **env}):
            return "allranks sampler" in _threads()

    assert sampled(0)
    assert not sampled(1)
    assert not sampled(0, ALLRANKS_SAMPLED="1")
    assert not sampled(0, ALLRANKS_SAMPLE="off")

    def absent() -> Path:
        raise RunNotFoundError("not on this node")

    with sample_here(absent, 0, 0, 1, print, OFTEN):
        assert "allranks sampler" not in _threads()
    with sample_here(lambda: tmp_path, 0, 0, 1, print, OFTEN):  # a run without attempts
        assert "allranks sampler" not in _threads()
