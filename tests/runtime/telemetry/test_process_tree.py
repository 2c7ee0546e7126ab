"""Which processes are ours, and what they used though they come and go."""

from __future__ import annotations

import os
import signal

import pytest
from proc_rig import Proc

from allranks.runtime.telemetry.process_tree import (
    ProcessTree,
    TreeMemory,
    UsageCounter,
    launch_variables,
    read_process,
)

MB = 1 << 20


def test_a_line_of_stat_with_a_strange_name(proc: Proc) -> None:
    proc.process(7, 3, start=55, own=20, waited=9, resident=8 * MB, name="a) (b 1 2 3")
    found = read_process(7, str(proc.path))
    assert found is not None
    assert (found.pid, found.parent, found.start, found.own, found.waited) == (7, 3, 55, 20, 9)
    assert found.resident == 8 * MB
    assert read_process(8, str(proc.path)) is None


def test_the_tree_has_what_is_below_and_stays_with_it(proc: Proc) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (21, 20)):
        proc.process(pid, parent)
    tree = ProcessTree(10, proc=str(proc.path))
    assert set(tree.sample()) == {10, 11, 12}
    proc.process(13, 12)
    proc.process(22, 21)
    proc.end(11)
    proc.process(12, 1)  # its parent died, and init took it
    assert set(tree.sample()) == {10, 12, 13}


def test_a_number_that_is_used_again_is_another_process(proc: Proc) -> None:
    proc.process(1, 0)
    proc.process(10, 1)
    proc.process(11, 10, start=5)
    tree = ProcessTree(10, proc=str(proc.path))
    assert set(tree.sample()) == {10, 11}
    proc.process(11, 1, start=90)
    assert set(tree.sample()) == {10}


def test_ranks_with_agents_of_their_own_are_found_by_what_their_launcher_gave(proc: Proc) -> None:
    mine = ("ALLRANKS_ATTEMPT_DIR=/r/1", "SLURM_JOB_ID=5", "SLURM_NODEID=0", "HOME=/h")
    proc.process(1, 0)
    proc.process(10, 1, environ=mine)
    proc.process(20, 1, environ=(*mine, "RANK=1"))
    proc.process(21, 20, environ=())
    proc.process(30, 1, environ=("ALLRANKS_ATTEMPT_DIR=/r/1", "SLURM_JOB_ID=5", "SLURM_NODEID=1"))
    proc.process(40, 1, environ=("ALLRANKS_ATTEMPT_DIR=/r/2", "SLURM_JOB_ID=6", "SLURM_NODEID=0"))
    wanted = launch_variables(10, str(proc.path))
    assert b"HOME=/h" not in wanted
    assert len(wanted) == 3
    tree = ProcessTree(10, wanted, str(proc.path))
    assert set(tree.sample()) == {10, 20, 21}
    assert sorted(tree.roots()) == [10, 20]
    proc.end(20)
    assert set(tree.sample()) == {10, 21}
    assert tree.roots() == [10]


def test_the_tree_of_real_processes() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        members = ProcessTree(os.getpid()).sample()
        assert {os.getpid(), pid} <= set(members)
        assert os.getppid() not in members
        assert members[pid].stack == members[os.getpid()].stack  # forked, not started anew
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class TestUsed:
    A, B = (1, 10), (2, 10)

    def used(self) -> UsageCounter:
        used = UsageCounter()
        assert used.increase({self.A: (100, 0), self.B: (50, 0)}, now=1000) == 0
        return used

    def test_the_first_look_only_begins(self) -> None:
        used = self.used()
        assert used.increase({self.A: (130, 0), self.B: (51, 0)}, now=1100) == 31

    def test_what_was_born_since_counts_whole_and_what_was_missed_does_not(self) -> None:
        used = self.used()
        born, missed = (9, 1050), (8, 900)
        counts = {self.A: (100, 0), self.B: (50, 0), born: (7, 1), missed: (500, 0)}
        assert used.increase(counts, now=1100) == 8

    def test_the_dead_count_once_though_their_parent_inherits_them(self) -> None:
        used = self.used()
        # B ended at 58 and A waited for it: 50 of them were counted before.
        assert used.increase({self.A: (110, 58)}, now=1100) == 10 + 8
        assert used.increase({self.A: (110, 58)}, now=1200) == 0

    def test_nothing_is_negative_when_nobody_inherits(self) -> None:
        used = self.used()
        assert used.increase({self.A: (110, 0)}, now=1100) == 10

    def test_a_child_that_lived_between_two_looks(self) -> None:
        used = self.used()
        assert used.increase({self.A: (100, 40), self.B: (50, 0)}, now=1100) == 40


def _smaps(proc: Proc, pid: int, kilobytes: int) -> None:
    text = f"0-1 ---p 0 00:00 0 [rollup]\nRss: 1 kB\nPss:  {kilobytes} kB\nPss_Dirty: 3 kB\n"
    (proc.path / str(pid) / "smaps_rollup").write_text(text)


def _held(proc: Proc, held: TreeMemory, root: int = 10) -> int:
    return held.bytes(ProcessTree(root, proc=str(proc.path)).sample())


def test_shared_pages_are_counted_once(proc: Proc) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 10)):
        proc.process(pid, parent, resident=300 * MB, stack=77)
        _smaps(proc, pid, 100 << 10)
    held = TreeMemory(str(proc.path))
    assert _held(proc, held) == 300 * MB
    proc.process(12, 10, resident=340 * MB, stack=77)  # what it grows by is its own
    for pid in (10, 11, 12):
        (proc.path / str(pid) / "smaps_rollup").unlink()
    assert _held(proc, held) == 340 * MB


def test_without_the_kernels_answer_a_fork_is_taken_for_its_parents_memory(proc: Proc) -> None:
    proc.process(10, 1, resident=300 * MB, stack=77)
    proc.process(11, 10, resident=310 * MB, stack=77)
    folder = proc.process(12, 10, resident=200 * MB, stack=99)
    (folder / "statm").write_text(f"999999 {200 * MB // 4096} {50 * MB // 4096} 1 0 1 0\n")
    assert _held(proc, TreeMemory(str(proc.path))) == (300 + 10 + 150) * MB


def test_huge_processes_are_not_asked_again_and_again(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.process(10, 1, resident=300 * MB)
    held, asked, clock = TreeMemory(str(proc.path)), [], iter(range(1000))
    monkeypatch.setattr(held, "_share", lambda pid: asked.append(pid))
    monkeypatch.setattr(
        "allranks.runtime.telemetry.process_tree.time.thread_time", lambda: float(next(clock))
    )
    for _ in range(20):  # each answer costs a second of CPU time
        _held(proc, held)
    assert asked == [10]


def test_a_huge_process_is_asked_once_and_when_it_has_doubled(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, sizes = TreeMemory(str(proc.path)), (32, 32, 63, 64, 64)
    asked: list[int] = []

    def share(pid: int) -> int:  # of its pages half are another's
        asked.append(size)
        return size << 29

    monkeypatch.setattr(held, "_share", share)
    for size in sizes:
        proc.process(10, 1, resident=size << 30)
        assert _held(proc, held) == (size << 30) - ((64 if size == 64 else 32) << 29)
    assert asked == [32, 64]
