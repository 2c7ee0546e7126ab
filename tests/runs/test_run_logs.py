"""Reading logs: merged by time, over attempts, filtered, the tail."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from run_files import stamp, write_failure, write_log

from allranks.runs import Run
from allranks.runs import log_lines as logs
from allranks.runs.log_lines import LogLine, attempt_lines, read_logs, read_plain

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "t.py", line 3, in <module>',
    "    main()",
    "KeyError: 'x'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "t.py", line 9, in <module>',
    "ValueError: bad",
]


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    run = make_run()
    first, second = run.new_attempt().path, run.new_attempt().path
    write_log(first, 0, [(1, "o", "a"), (3, "e", "c"), (5, "o", "")])
    write_log(first, 1, [(2, "o", "b"), (3, "o", "d"), (9, "o", "late")])
    write_log(second, 0, [(4, "o", "again")])
    return run


def texts(lines: object) -> list[str]:
    return [line.text for line in lines]  # type: ignore[attr-defined]


def test_merged_by_time_attempt_after_attempt(run: Run) -> None:
    lines = list(read_logs(run))
    assert texts(lines) == ["a", "b", "c", "d", "", "late", "again"]
    assert lines[2] == LogLine(stamp(3), 1, 0, "e", "c")
    assert lines[-1].attempt == 2
    assert lines[0].when is not None
    assert lines[0].when.second == 1


def test_filters(run: Run) -> None:
    assert texts(read_logs(run, ranks={1})) == ["b", "d", "late"]
    assert texts(read_logs(run, stream="e")) == ["c"]
    assert texts(read_logs(run, attempt=2)) == ["again"]
    assert texts(read_logs(run, ranks={7})) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 100])
def test_tail_is_the_end_of_all(run: Run, count: int) -> None:
    everything = texts(read_logs(run))
    assert texts(read_logs(run, tail=count)) == everything[len(everything) - min(count, 7) :]
    some = texts(read_logs(run, stream="o"))
    assert texts(read_logs(run, stream="o", tail=count)) == some[max(len(some) - count, 0) :]


def test_tail_of_long_lines(make_run: Callable[..., Run]) -> None:
    run = make_run()
    attempt = run.new_attempt()
    write_log(attempt.path, 0, [(n / 1000, "o", f"{n} " + "x" * 5000) for n in range(400)])
    assert [text.split()[0] for text in texts(read_logs(run, tail=3))] == ["397", "398", "399"]


def test_lines_longer_than_a_chunk(make_run: Callable[..., Run]) -> None:
    run = make_run()
    write_log(run.new_attempt().path, 0, [(1, "o", "x" * 700_000), (2, "o", "end")])
    assert [len(text) for text in texts(read_logs(run))] == [700_000, 3]


def test_half_lines_and_foreign_bytes(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path
    write_log(folder, 0, [(1, "o", "whole")])
    with open(folder / "ranks" / "rank-00000.log", "ab") as file:
        file.write(b"no stamp \xff\n" + stamp(3).encode() + b" e cut of")
    lines = list(read_logs(run))
    assert texts(lines) == ["whole", "no stamp \ufffd", "cut of"]
    assert [line.time for line in lines] == [stamp(1), stamp(1), stamp(3)]


def test_carriage_returns_and_other_separators_stay_in_the_line(
    make_run: Callable[..., Run],
) -> None:
    run = make_run()
    write_log(run.new_attempt().path, 0, [(1, "o", "a\x0bb\u2028c\x85d")])
    assert len(list(read_logs(run))) == 1


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_errors_keep_whole_tracebacks_and_failures(
    make_run: Callable[..., Run], prefix: str
) -> None:
    run = make_run()
    folder = run.new_attempt().path
    write_log(folder, 0, [(n, "o", "  indented step") for n in range(1, 30)])
    write_log(
        folder,
        1,
        [(n, "e", prefix + text) for n, text in enumerate(TRACEBACK, 1)] + [(20, "o", "ok")],
    )
    write_log(folder, 2, [(5, "o", "ERROR: disk"), (6, "o", "0 errors"), (7, "o", "errorless")])
    write_failure(folder, 3, 40, signal="9", exit_code=137)
    lines = list(read_logs(run, errors=True))
    by_rank = {rank: [one.text for one in lines if one.rank == rank] for rank in range(4)}
    assert by_rank[0] == []
    assert by_rank[1] == [prefix + text for text in TRACEBACK if text]
    assert by_rank[2] == ["ERROR: disk"]
    assert by_rank[3] == [
        "rank 3 failed on node3: killed by SIGKILL, perhaps out of memory (exit code 137)"
    ]
    assert lines[-1].stream == "f"


def test_plain_slurm_output_without_the_agent(make_run: Callable[..., Run]) -> None:
    run = make_run().add_job_id("20").add_job_id("9")
    (run.path / "slurm-9.out").write_text("second\nslurmstepd: error: *** STEP CANCELLED\n")
    (run.path / "slurm-20.out").write_text("first")
    lines = list(read_logs(run))
    assert texts(lines) == ["first", "second", "slurmstepd: error: *** STEP CANCELLED"]
    assert (lines[0].rank, lines[0].time) == (None, "")
    assert texts(read_logs(run, errors=True)) == ["slurmstepd: error: *** STEP CANCELLED"]
    assert texts(read_logs(run, ranks={0})) == []
    assert texts(read_logs(run, tail=1)) == ["slurmstepd: error: *** STEP CANCELLED"]


def test_plain_output_stays_readable_beside_ranks(run: Run) -> None:
    (run.path / "slurm-1.out").write_text("module: not found\n")
    assert "module: not found" not in texts(read_logs(run))
    assert texts(read_plain(run)) == ["module: not found"]


def test_more_ranks_than_open_files(make_run: Callable[..., Run]) -> None:
    run = make_run()
    attempt = run.new_attempt()
    for rank in range(300):
        write_log(attempt.path, rank, [(n * 10 + rank / 1000, "o", "x") for n in range(3)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        lines = list(attempt_lines(attempt))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(lines) == 900
    assert all(one.time <= two.time for one, two in pairwise(lines))


def test_the_tail_of_plain_output_is_read_from_its_end(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run().add_job_id("1").add_job_id("2")
    (run.path / "slurm-1.out").write_text("".join(f"line {n}\n" for n in range(100_000)))
    (run.path / "slurm-2.out").write_text("a\nb\n")
    read = _count_reads(monkeypatch)
    assert texts(read_logs(run, tail=4)) == ["line 99998", "line 99999", "a", "b"]
    assert sum(read) < 20_000
    assert texts(read_logs(run, tail=0)) == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_of_megabytes_is_cut_in_the_tail(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    run = make_run()
    folder = run.new_attempt().path
    write_log(folder, 0, [(1, "o", "before"), (2, "e", "x" * 3_000_000)], "\n" if ended else "")
    read = _count_reads(monkeypatch)
    assert set(texts(read_logs(run, tail=1))[0]) == {"x"}
    assert sum(read) < 2_000_000
    assert len(next(read_logs(run, tail=1)).text) <= 64 << 10
    write_log(folder, 1, [(3, "e", "y" * 100_000)])
    (line,) = read_logs(run, ranks=[1], tail=1)
    assert (line.time, line.stream, line.text[:3]) == (stamp(3), "e", "yyy")


def test_a_pipe_in_place_of_a_log_is_not_waited_for(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path
    (folder / "ranks").mkdir()
    os.mkfifo(folder / "ranks" / "rank-00000.log")
    assert texts(read_logs(run)) == texts(read_logs(run, tail=3)) == []


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    whole = logs.read_chunk

    def counted(path: Path, offset: int, size: int) -> bytes:
        data = whole(path, offset, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(logs, "read_chunk", counted)
    return sizes
