"""Following: lines in order while they come, new ranks, new attempts, the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

from run_files import stamp, write_failure, write_log

from allranks.runs import Run
from allranks.runs.log_follower import follow
from allranks.runs.log_lines import LogLine

FAST = {"interval": 0.02, "window": 0.05, "settle": 0.1}


def collect(run: Run, writer: Callable[[], None], **options: object) -> list[LogLine]:
    """Follow while ``writer`` writes; the job has ended when it returns."""
    thread = threading.Thread(target=writer)
    thread.start()
    lines = list(follow(run, stop=lambda: not thread.is_alive(), **{**FAST, **options}))  # type: ignore[arg-type]
    thread.join()
    return lines


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_ended_run_is_read_whole(make_run: Callable[..., Run]) -> None:
    run = make_run()
    write_log(run.new_attempt().path, 0, [(1, "o", "a")])
    assert texts(list(follow(run, stop=lambda: True, **FAST))) == ["a"]


def test_new_lines_ranks_and_attempts(make_run: Callable[..., Run]) -> None:
    run = make_run()

    def write() -> None:
        for number in range(2):
            folder = run.new_attempt().path
            for step in range(5):
                for rank in range(3):
                    write_log(folder, rank, [(step * 3 + rank, "o", f"{number}.{step}.{rank}")])
                time.sleep(0.03)

    expected = [f"{n}.{step}.{rank}" for n in range(2) for step in range(5) for rank in range(3)]
    assert texts(collect(run, write)) == expected


def test_lines_in_pieces_and_without_an_end(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path

    def write() -> None:
        write_log(folder, 0, [(1, "o", "hel")], end="")
        time.sleep(0.1)
        with open(folder / "ranks" / "rank-00000.log", "a") as file:
            file.write(f"lo\n{stamp(2)} e las")

    assert texts(collect(run, write)) == ["hello", "las"]


def test_late_line_within_the_window_is_put_in_order(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path

    def write() -> None:
        write_log(folder, 0, [(5, "o", "newer")])
        time.sleep(0.06)
        write_log(folder, 1, [(4, "o", "older")])

    assert texts(collect(run, write, window=0.5, settle=0.8)) == ["older", "newer"]


def test_chosen_ranks_and_errors(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path

    def write() -> None:
        write_log(folder, 0, [(1, "o", "RuntimeError: 0")])
        write_log(folder, 1, [(2, "o", "RuntimeError: 1"), (3, "o", "fine")])
        write_failure(folder, 1, 4, exit_code=7)

    lines = collect(run, write, ranks={1}, errors=True)
    assert texts(lines) == ["RuntimeError: 1", "rank 1 failed on node1: exit code 7"]


def test_slurm_output_speaks_until_a_rank_does(make_run: Callable[..., Run]) -> None:
    run = make_run().add_job_id("5")
    output = run.path / "slurm-5.out"

    def write() -> None:
        output.write_text("loading modules\n")
        time.sleep(0.3)
        write_log(run.new_attempt().path, 0, [(1, "o", "step")])
        with output.open("a") as file:
            file.write("[rank 0] step\n")
        time.sleep(0.1)

    assert texts(collect(run, write)) == ["loading modules", "step"]


def test_slurm_output_when_the_script_failed_before_the_agent(make_run: Callable[..., Run]) -> None:
    run = make_run()
    lines = collect(run, lambda: void((run.path / "slurm-5.out").write_text("module: not found")))
    assert texts(lines) == ["module: not found"]


def void(_: object) -> None:
    """Nothing."""


def test_many_files_are_asked_for_their_size(make_run: Callable[..., Run]) -> None:
    run = make_run()
    folder = run.new_attempt().path
    for rank in range(300):
        write_log(folder, rank, [(1 + rank / 1000, "o", "a")])

    def write() -> None:
        time.sleep(0.2)
        write_log(folder, 299, [(9, "o", "last")])

    lines = collect(run, write)
    assert len(lines) == 301
    assert lines[-1].text == "last"
    assert all(one.time <= two.time for one, two in pairwise(lines))
