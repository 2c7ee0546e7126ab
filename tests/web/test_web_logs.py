"""Logs in pages: nothing twice, nothing left out, in either direction and whatever is searched for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.runs.folder import Run
from allranks.runs.logs import read_logs
from allranks.web.log_files import Place
from allranks.web.log_pages import Query, around, last_page, next_page


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


def forward(run: Run, query: Query, limit: int) -> list[dict[str, object]]:
    lines, place = [], None
    while True:
        page = next_page(run, query, limit, place)
        lines += page["lines"]
        if not page["more"]:
            return lines
        place = Place.read(page["next"])


def backward(run: Run, query: Query, limit: int) -> list[dict[str, object]]:
    page = last_page(run, query, limit)
    lines = page["lines"]
    while page["earlier"]:
        page = last_page(run, query, limit, Place.read(lines[0]["place"]))
        lines = page["lines"] + lines
    return lines


@pytest.mark.parametrize("limit", [97, 100_000])
def test_pages_forward_are_the_merged_logs(run: Run, limit: int) -> None:
    assert told(forward(run, Query(), limit)) == whole(run)


@pytest.mark.parametrize("limit", [97, 1000])
def test_pages_backward_too(run: Run, limit: int) -> None:
    assert told(backward(run, Query(), limit)) == whole(run)


@pytest.mark.parametrize(
    "query",
    [
        Query("line 29"),
        Query("LINE 29", case=True),
        Query("Line 29"),
        Query(r"rank [13] line 2\d\b", regex=True),
        Query("without a stamp"),
        Query("rank 4", ranks=frozenset({4, 0})),
        Query(stream="e", attempt=2),
    ],
)
def test_a_search_finds_what_reading_all_of_it_finds(run: Run, query: Query) -> None:
    wanted = query.matcher()
    lines = read_logs(run, ranks=query.ranks, attempt=query.attempt)
    expected = [(line.attempt, line.rank, line.text) for line in lines if wanted(line)]
    assert told(forward(run, query, 10)) == expected
    if query.text != "LINE 29":
        assert expected


def test_a_traceback_over_many_pages_stays_whole(run: Run) -> None:
    found = forward(run, Query(errors=True), 20)
    assert [line["text"] for line in found] == [
        "Traceback (most recent call last):", *["  File x"] * 60, "ValueError: b0om"
    ]  # fmt: skip


def test_a_line_between_its_neighbours(run: Run) -> None:
    every = forward(run, Query(), 100_000)
    for index in (0, 5, len(every) // 2, len(every) - 1):
        page = around(run, Query(), 40, Place.read(str(every[index]["place"])))
        assert every[index] in page["lines"]
        assert len(page["lines"]) >= min(20, len(every) - index)


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "long", scheduler="local", cwd="/", command=[])
    attempt = run.new_attempt()
    (attempt.path / "ranks").mkdir()
    log = attempt.path / "ranks" / "rank-00000.log"
    log.write_text(
        f"2026-01-01T00:00:00.000000Z o {'y' * 100_000}\n2026-01-01T00:00:01.000000Z o half"
    )
    lines = last_page(run, Query(), 10)["lines"]
    assert [len(line["text"]) for line in lines] == [4000]  # the other is still being written
    assert lines[0]["cut"] == 96_000
    log.open("a").write(" and whole\n")
    after = next_page(run, Query(), 10, Place.read(lines[0]["place"]))
    assert [line["text"] for line in after["lines"]] == ["half and whole"]


def test_what_slurm_kept(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "plain", scheduler="slurm", cwd="/", command=[]).add_job_id("7")
    (run.path / "slurm-7.out").write_text("".join(f"line {n}\n" for n in range(3000)))
    assert [line["text"] for line in backward(run, Query(), 700)] == [
        f"line {n}" for n in range(3000)
    ]
    assert [line["text"] for line in forward(run, Query("line 299"), 3)] == [
        "line 299", *(f"line {n}" for n in range(2990, 3000))
    ]  # fmt: skip


def test_words_that_are_no_pattern_or_place_are_told() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        Query("(", regex=True).matcher()
    with pytest.raises(UsageError, match="longer than anyone waits"):
        Query("(a+)+$", regex=True).matcher()
    with pytest.raises(UsageError, match="not a place"):
        Place.read("nonsense")
