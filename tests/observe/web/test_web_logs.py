"""Logs in pages: nothing twice, nothing left out, in either direction and whatever is searched for."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.observe.web.child_processes import search_logs
from allranks.observe.web.log_files import LogPosition, LogQuery
from allranks.observe.web.log_pages import Cursor, around, last_page, next_page
from allranks.runs.log_lines import read_logs
from allranks.runs.run_folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two attempts, five ranks that write at the same moments, long lines, some without a stamp."""
    run = Run.create(
        tmp_path_factory.mktemp("logs"), "logs", scheduler="local", cwd="/", command=[]
    )
    chance = random.Random(7)
    for number in (1, 2):
        attempt = run.new_attempt()
        (attempt.path / "ranks").mkdir()
        for rank in range(5):
            moment, lines = 0, []
            for place in range(300):
                moment += chance.choice((0, 0, 1, 1000))
                text = f"attempt {number} rank {rank} line {place} " + "x" * chance.choice(
                    (0, 9, 900)
                )
                stamp = f"2026-01-0{number}T00:{moment // 60000:02}:{moment // 1000 % 60:02}.{moment % 1000:03}000Z"
                lines.append(f"{stamp} {'e' if place % 9 == 0 else 'o'} {text}")
                if place % 50 == 7:
                    lines.append(f"without a stamp after {place} of rank {rank} in {number}")
            if rank == 3 and number == 2:
                lines += [
                    f"2026-01-02T02:00:00.000000Z e {text}"
                    for text in (
                        "Traceback (most recent call last):",
                        *["  File x"] * 60,
                        "ValueError: b0om",
                    )
                ]
            (attempt.path / "ranks" / f"rank-{rank:05}.log").write_text("\n".join(lines) + "\n")
        attempt.finish(0)
    return run


def whole(run: Run, **how: object) -> list[tuple[int, int | None, str]]:
    return [(line.attempt, line.rank, line.text) for line in read_logs(run, **how)]  # type: ignore[arg-type]


def told(lines: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [(line["attempt"], line["rank"], line["text"]) for line in lines]


def forward(run: Run, query: LogQuery, limit: int) -> list[dict[str, object]]:
    lines, place = [], None
    while True:
        page = next_page(run, query, limit, place)
        lines += page["lines"]
        if not page["more"]:
            return lines
        place = Cursor.read(page["next"])


def backward(run: Run, query: LogQuery, limit: int) -> list[dict[str, object]]:
    page = last_page(run, query, limit)
    lines = page["lines"]
    while page["before"]:
        page = last_page(run, query, limit, Cursor.read(page["before"]))
        lines = page["lines"] + lines
    return lines


@pytest.mark.parametrize("limit", [97, 100_000])
def test_pages_forward_are_the_merged_logs(run: Run, limit: int) -> None:
    assert told(forward(run, LogQuery(), limit)) == whole(run)


@pytest.mark.parametrize("limit", [97, 1000])
def test_pages_backward_too(run: Run, limit: int) -> None:
    assert told(backward(run, LogQuery(), limit)) == whole(run)


@pytest.mark.parametrize(
    "query",
    [
        LogQuery("line 29"),
        LogQuery("LINE 29", case=True),
        LogQuery("Line 29"),
        LogQuery(r"rank [13] line 2\d\b", regex=True),
        LogQuery("without a stamp"),
        LogQuery("rank 4", ranks=[range(4, 5), range(1)]),
        LogQuery(stream="e", attempt=2),
    ],
)
def test_a_search_finds_what_reading_all_of_it_finds(run: Run, query: LogQuery) -> None:
    wanted = query.matcher()
    lines = [line for line in read_logs(run, attempt=query.attempt) if query.wants(line.rank or 0)]
    expected = [(line.attempt, line.rank, line.text) for line in lines if wanted(line)]
    assert told(forward(run, query, 10)) == expected
    if query.text != "LINE 29":
        assert expected


def test_a_traceback_over_many_pages_stays_whole(run: Run) -> None:
    found = forward(run, LogQuery(errors=True), 20)
    assert [line["text"] for line in found] == [
        "Traceback (most recent call last):", *["  File x"] * 60, "ValueError: b0om"
    ]  # fmt: skip


def test_a_line_between_its_neighbours(run: Run) -> None:
    every = forward(run, LogQuery(), 100_000)
    for index in (0, 5, len(every) // 2, len(every) - 1):
        page = around(run, LogQuery(), 40, LogPosition.read(str(every[index]["place"])))
        assert every[index] in page["lines"]
        assert len(page["lines"]) >= min(20, len(every) - index)


def test_a_failure_is_looked_at_where_it_happened(run: Run, tmp_path: Path) -> None:
    """Its record is in no log: the line after it, of any rank, is the place to look at."""
    every = forward(run, LogQuery(), 100_000)
    failed = Run.open(shutil.copytree(run.path, tmp_path / "failed"))
    record = {"rank": 3, "exit_code": 1, "time": "2026-01-02T00:00:30.000000Z"}
    write(failed.path / "attempts" / "2" / "failures" / "rank-00003.json", json.dumps(record))
    [told] = [one for one in forward(failed, LogQuery(errors=True), 100) if one["stream"] == "f"]
    page = around(failed, LogQuery(), 60, LogPosition.read(str(told["place"])))
    index = next(n for n, one in enumerate(every) if str(one["time"]) >= record["time"])
    assert page["at"] == every[index]["place"]
    assert page["lines"] == every[index - 30 : index + 30]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "long", scheduler="local", cwd="/", command=[])
    attempt = run.new_attempt()
    (attempt.path / "ranks").mkdir()
    log = attempt.path / "ranks" / "rank-00000.log"
    log.write_text(
        f"2026-01-01T00:00:00.000000Z o {'y' * 100_000}\n2026-01-01T00:00:01.000000Z o half"
    )
    page = last_page(run, LogQuery(), 10)
    assert [len(line["text"]) for line in page["lines"]] == [4000]  # the other is being written
    assert page["lines"][0]["cut"] > 60_000
    append(log, " and whole\n")
    after = next_page(run, LogQuery(), 10, Cursor.read(page["next"]))
    assert [line["text"] for line in after["lines"]] == ["half and whole"]


@pytest.mark.parametrize("stamp", ["2026-01-01T00:00:00.000000Z o ", ""])
def test_a_line_of_megabytes_does_not_move_its_neighbours(tmp_path: Path, stamp: str) -> None:
    run = Run.create(tmp_path, "huge", scheduler="slurm", cwd="/", command=[]).add_job_id("7")
    attempt = run.new_attempt()
    (attempt.path / "ranks").mkdir()
    log = attempt.path / "ranks" / "rank-00000.log" if stamp else run.path / "slurm-7.out"
    words = ["one", "y" * 3_000_000, "", "two", "z" * 700_000, "three"]
    log.write_text("".join(f"{stamp}{text}\n" for text in words))
    for lines in (forward(run, LogQuery(), 2), backward(run, LogQuery(), 2)):
        assert [line["text"] for line in lines] == [text[:4000] for text in words]
        offsets = [LogPosition.read(str(line["place"])).offset for line in lines]
        assert offsets == [sum(len(stamp) + len(w) + 1 for w in words[:n]) for n in range(6)]


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def rank_log(run: Run, rank: int = 0, **about: str) -> Path:
    """The log of a rank in an attempt of its own."""
    attempt = run.new_attempt()
    path = attempt.path / "attempt.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | about))
    (attempt.path / "ranks").mkdir()
    return attempt.path / "ranks" / f"rank-{rank:05}.log"


def test_following_leaves_out_no_line_that_comes_late(tmp_path: Path) -> None:
    """Of a clock that is behind, and of a rank that was not heard of before."""
    run = Run.create(tmp_path, "late", scheduler="local", cwd="/", command=[])
    log = rank_log(run)
    append(log, "2026-01-01T00:00:10.000000Z o first\n")
    page = last_page(run, LogQuery(), 10)
    append(log, "2026-01-01T00:00:05.000000Z o the clock was set back\n")
    append(log.with_name("rank-00001.log"), "2026-01-01T00:00:01.000000Z o slow file system\n")
    page = next_page(run, LogQuery(), 10, Cursor.read(page["next"]))
    assert [line["rank"] for line in page["lines"]] == [1, 0]
    append(log.with_name("rank-00001.log"), "2026-01-01T00:00:02.000000Z o and more\n")
    page = next_page(run, LogQuery(), 10, Cursor.read(page["next"]))
    assert [line["text"] for line in page["lines"]] == ["and more"]
    assert len(backward(run, LogQuery(), 1)) == 4


@pytest.mark.parametrize(
    "query",
    [LogQuery("epoch 5"), LogQuery("Epoch 5", case=True), LogQuery(r"^epoch \d+$", regex=True)],
)
def test_colours_within_a_line_do_not_hide_it(tmp_path: Path, query: LogQuery) -> None:
    run = Run.create(tmp_path, "colours", scheduler="local", cwd="/", command=[])
    append(rank_log(run), "2026-01-01T00:00:10.000000Z o \x1b[32mepoch\x1b[0m 5\n")
    found = [line["text"] for line in forward(run, query, 10)]
    assert found == ([] if query.case else ["\x1b[32mepoch\x1b[0m 5"])


def test_the_tasks_of_an_array_are_merged_and_all_followed(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "array", scheduler="slurm", cwd="/", command=[])
    about = run.path / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"array": "0-1"}))
    one, two = rank_log(run, array_task="0"), rank_log(run, array_task="1")
    for second in range(4):
        append((one, two)[second % 2], f"2026-01-01T00:00:0{second}.000000Z o second {second}\n")
    page = last_page(run, LogQuery(), 10)
    assert [line["text"][-1] for line in page["lines"]] == ["0", "1", "2", "3"]
    assert [line["task"] for line in page["lines"]] == ["0", "1", "0", "1"]
    append(one, "2026-01-01T00:00:09.000000Z o of the first\n")
    append(two, "2026-01-01T00:00:08.000000Z o of the second\n")
    after = next_page(run, LogQuery(), 10, Cursor.read(page["next"]))
    assert [line["text"] for line in after["lines"]] == ["of the second", "of the first"]
    assert len(last_page(run, LogQuery(task="1"), 10)["lines"]) == 3


def test_slurms_output_is_followed_and_searched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of it than one answer has time for, and no times to find a place by."""
    run = Run.create(tmp_path, "plain", scheduler="slurm", cwd="/", command=[]).add_job_id("7")
    out = run.path / "slurm-7.out"
    out.write_text("".join(f"line {n} {'x' * 90}\n" for n in range(30_000)) + "needle\n")
    monkeypatch.setattr("allranks.observe.web.log_pages.PATIENCE", 0.0)
    found = forward(run, LogQuery("NEEDLE"), 10)
    assert [line["text"] for line in found] == ["needle"]
    assert len(forward(run, LogQuery("line 2999"), 3)) == 11
    page = last_page(run, LogQuery(), 10)
    append(out, "and on it goes\n")
    after = next_page(run, LogQuery(), 10, Cursor.read(page["next"]))
    assert [line["text"] for line in after["lines"]] == ["and on it goes"]


def test_a_regular_expression_is_searched_for_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    query = LogQuery(r"rank [13] line 2\d\b", regex=True, ranks=[range(1, 4)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    assert search_logs(run, query, 20) == next_page(run, query, 20)
    with pytest.raises(UsageError, match="not a regular expression"):
        search_logs(run, LogQuery("(", regex=True), 20)


def test_a_regular_expression_without_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path, "endless", scheduler="local", cwd="/", command=[])
    append(rank_log(run), f"2026-01-01T00:00:10.000000Z o {'a' * 60}b\n")
    monkeypatch.setattr("allranks.observe.web.child_processes.SEARCH_SECONDS", 1.0)
    with pytest.raises(UsageError, match="takes too long"):
        search_logs(run, LogQuery("(a|aa)+$", regex=True), 20)


def test_what_slurm_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "plain", scheduler="slurm", cwd="/", command=[]).add_job_id("7")
    (run.path / "slurm-7.out").write_text("".join(f"line {n}\n" for n in range(3000)))
    assert [line["text"] for line in backward(run, LogQuery(), 700)] == [
        f"line {n}" for n in range(3000)
    ]
    assert [line["text"] for line in forward(run, LogQuery("line 299"), 3)] == [
        "line 299", *(f"line {n}" for n in range(2990, 3000))
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["nonsense", "1.2", "1_2.3.x", f"1_1.0.{'9' * 5000}"])
def test_words_that_are_no_place_are_told(text: str) -> None:
    for kind in (LogPosition, Cursor):
        with pytest.raises(UsageError, match="not a position"):
            kind.read(text)


def test_a_cursor_reads_as_it_was_written() -> None:
    for cursor in (Cursor(), Cursor(3, {"3.0": 17, "3.-1": 0, "3.f2": 1})):
        assert Cursor.read(str(cursor)) == cursor
