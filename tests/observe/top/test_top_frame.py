"""Whole pictures, compared with files, and what holds of a picture at any size.

Write the files anew with: UPDATE_GOLDEN=1 pytest tests/observe/top/test_top_frame.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.top.footer import ViewSettings
from allranks.observe.top.frame import Frame, frame
from allranks.observe.top.terminal import render_line
from allranks.observe.top.text_layout import ASCII, BLOCKS
from allranks.observe.view.model import NodeNow, RankNow, RunView, TrainingProgress
from allranks.runs.attempt import Failure
from allranks.runs.run_folder import Run
from run_view_rig import NOW, failed, one_task, own_script, pending, run_view, stalled, status

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, tuple[Callable[[], RunView], int, int | None, ViewSettings]] = {
    "running-80x24": (run_view, 80, 24, ViewSettings()),
    "nodes-80x24": (run_view, 80, 24, ViewSettings(rows="nodes")),
    "cpu-80x24": (lambda: run_view(gpus=False), 80, 24, ViewSettings()),
    "cpu-ranks-80x24": (lambda: run_view(gpus=False), 80, 24, ViewSettings(rows="ranks")),
    "pending-80x24": (pending, 80, 24, ViewSettings()),
    "own-script-80x24": (own_script, 80, 24, ViewSettings()),
    "failed-80x24": (failed, 80, 24, ViewSettings()),
    "help-80x24": (run_view, 80, 24, ViewSettings(help=True)),
    "scrolled-80x24": (lambda: run_view(64), 80, 24, ViewSettings(first=30, paused=True)),
    "slowest-120x40": (lambda: run_view(64), 120, 40, ViewSettings(slowest=True)),
    "small-40x10": (lambda: run_view(64), 40, 10, ViewSettings()),
    "array-80x24": (one_task, 80, 24, ViewSettings()),
    "stalled-80x24": (stalled, 80, 24, ViewSettings()),
    "stalled-nodes-80x24": (stalled, 80, 24, ViewSettings(rows="nodes")),
    "failed-page-60": (failed, 60, None, ViewSettings()),
    "page-100": (lambda: run_view(16), 100, None, ViewSettings()),
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _text(made: Frame) -> str:
    return "".join(line.plain.rstrip() + "\n" for line in made.lines)


@pytest.mark.parametrize("name", CASES)
def test_the_picture(name: str) -> None:
    make, width, height, view = CASES[name]
    made = _text(frame(make(), width, height, view))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(made, encoding="utf-8")
    assert made == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("make", [run_view, pending, own_script, failed, one_task, stalled])
def test_no_line_is_ever_too_long_and_none_too_many(make: Callable[[], RunView]) -> None:
    shown = make()
    for width in (1, 2, 7, 20, 39, 60, 79, 80, 81, 200):
        for height in (1, 2, 3, 7, 8, 9, 15, 24, 70):
            for glyphs in (BLOCKS, ASCII):
                for rows in ("ranks", "nodes"):
                    made = frame(shown, width, height, ViewSettings(rows=rows), glyphs)
                    assert len(made.lines) == height
                    assert max(line.cell_len for line in made.lines) <= width


def test_ascii_is_ascii() -> None:
    for make in (run_view, failed, pending):
        assert _text(frame(make(), 80, 24, glyphs=ASCII)).isascii()


def test_microseconds_are_written_as_the_terminal_can() -> None:
    shown = replace(run_view(2), phases={"data": 62e-6}, ranks=[RankNow(0, "n", None, 62e-6)])
    rows = ViewSettings(rows="ranks")
    assert _text(frame(shown, 80, 24, rows)).count("62 µs") == 2
    plain = _text(frame(shown, 80, 24, rows, ASCII))
    assert plain.count("62 us") == 2
    assert plain.isascii()


def test_the_rows_scroll_to_the_last_and_not_beyond() -> None:
    shown = run_view(64)
    made = frame(shown, 80, 24, ViewSettings(first=10**9))
    assert made.first + made.shown == made.total == 64
    assert f"ranks {made.first + 1}-64 of 64" in _text(made)
    assert "  63  node2" in _text(made)


def test_the_slowest_comes_first() -> None:
    made = _text(frame(run_view(64, straggler=47), 80, 24, ViewSettings(slowest=True)))
    first = made.splitlines()[made.splitlines().index("") + 2]
    assert first.split()[0] == "47"
    assert "straggler +31%" in first
    nodes = _text(
        frame(run_view(64, straggler=47), 80, 24, ViewSettings(slowest=True, rows="nodes"))
    )
    assert nodes.index("node2 ") < nodes.index("node1 ")


def test_a_limit_that_comes_before_the_end_is_marked() -> None:
    whole = run_view()
    soon = replace(whole.progress, deadline=NOW.timestamp() + 1800)
    made = frame(replace(whole, progress=soon), 80, 24)
    line = next(line for line in made.lines if "time limit" in line.plain)
    assert "time limit in 0:30:00, before the end" in line.plain
    assert any("red" in str(span.style) for span in line.spans)
    assert "time limit in 2:00:00, enough" in _text(frame(whole, 80, 24))


def test_a_run_that_has_stopped_moving_promises_no_end() -> None:
    made = _text(frame(stalled(), 80, 24))
    assert "no step for 2:00:00" in made
    assert "to go" not in made
    assert "enough" not in made
    ended = replace(stalled(), status=status(JobState.FAILED, end=NOW))
    assert "ago" not in _text(frame(ended, 80, 24, ViewSettings(rows="nodes")))


def test_a_job_that_slurm_has_forgotten_does_not_run_for_ever() -> None:
    whole = run_view(2, None)
    passed = replace(
        whole.progress, eta_seconds=None, deadline=(NOW - timedelta(days=8)).timestamp()
    )
    gone = replace(whole, status=status(JobState.UNKNOWN), progress=passed)
    made = _text(frame(gone, 80, 24)).splitlines()
    assert made[0].startswith("train-20261115-105757  unknown  job 4711  attempt 2")
    assert made[1] == "Slurm no longer knows the job"
    assert made[3].startswith("its time limit passed 8 d ago")
    silent = replace(gone, status=status(JobState.UNKNOWN, why="squeue did not answer"))
    assert "squeue did not answer" in _text(frame(silent, 80, 24))


def test_the_error_is_seen_above_what_is_printed_below_it() -> None:
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    footer = ["Device-side assertions were not enabled."] * 8
    trace = "\n".join(
        ["Traceback (most recent call last):", '  File "t.py", line 1', error, *footer]
    )
    for height in (12, 24, 60):
        shown = replace(
            failed(), error=Failure(2, "node1", exit_code=137, signal="9", traceback=trace)
        )
        made = _text(frame(shown, 100, height))
        assert "rank 2 on node1 failed first: killed by SIGKILL, perhaps out of memory" in made
        assert made.count(error) == 1


@pytest.mark.parametrize(
    ("trainer", "minutes", "state", "text"),
    [
        (True, 60, JobState.RUNNING, "no step yet"),
        (False, 1, JobState.RUNNING, "no step yet"),
        (False, 60, JobState.RUNNING, "The script reports no training metrics."),
        (False, 1, JobState.COMPLETED, "The script reports no training metrics."),
        (True, 1, JobState.FAILED, "It ended before its first step."),
    ],
)
def test_a_script_that_may_still_be_loading(
    trainer: bool, minutes: int, state: JobState, text: str
) -> None:
    begun = status(state, start=NOW - timedelta(minutes=minutes), end=NOW if state.ended else None)
    limit = TrainingProgress(deadline=NOW.timestamp() + 60)
    shown = replace(own_script(), status=begun, trainer=trainer, progress=limit)
    made = _text(frame(shown, 100, 24))
    assert text in made
    assert ("time limit in 0:01:00" in made) is not state.ended
    assert made.count("allranks.Trainer") == text.startswith("The script")


def test_your_own_metrics_are_shown_whatever_they_are_called() -> None:
    values = {"train_latency_seconds": 0.25, "lrx": 3.0, "forward_seconds": 0.1, "epoch_seconds": 9}
    made = _text(frame(replace(run_view(2), values=values), 120, 24))
    assert "train_latency_seconds 0.2500  lrx 3" in made
    assert "forward_seconds" not in made
    assert "epoch_seconds" not in made


def test_a_task_that_is_over_leads_to_those_that_run() -> None:
    over = replace(one_task(), status=status(JobState.COMPLETED, end=NOW), running_tasks=["9", "5"])
    assert "tasks 9, 5 run: allranks top 4711_9" in _text(frame(over, 80, 24))
    one = replace(over, running_tasks=["9"], status=status(JobState.COMPLETED, end=NOW, job_id=""))
    assert "task 9 runs: allranks top --task 9 train-20261115-105757" in _text(frame(one, 80, 24))
    assert " run: " not in _text(frame(replace(one_task(), running_tasks=["3", "5"]), 80, 24))
    assert "task 5 runs: " in _text(frame(replace(over, running_tasks=["3", "5"]), 80, 24))


def test_a_task_of_an_array_says_which_it_is() -> None:
    for width in (40, 80):
        assert "task 3" in _text(frame(one_task(), width, 24)).splitlines()[0]
    made = _text(frame(one_task(), 80, 24))
    assert "tasks 1, 7 did not finish: allranks top 4711_1" in made
    alone = replace(one_task(), failed_tasks=["3"])
    assert "did not finish" not in _text(frame(alone, 80, 24))


def test_an_error_is_wrapped_not_cut() -> None:
    message = "ValueError: " + " ".join(f"word{number}" for number in range(40))
    shown = failed()
    assert shown.error is not None
    long = replace(shown, error=replace(shown.error, traceback=f"Traceback\n{message}"))
    text = _text(frame(long, 60))
    assert all(f"word{number}" in text for number in range(40))
    assert "ValueError: word0" in _text(frame(long, 60, 24))


def test_an_end_stays_and_says_how() -> None:
    ended = status(JobState.COMPLETED, end=NOW, exit_code=0)
    made = _text(frame(replace(run_view(), status=ended), 80, 24))
    assert "train-20261115-105757  completed" in made
    assert "completed at 2026-11-15 12:00:00" in made
    assert "to go" not in made
    assert "time limit" not in made


def test_texts_of_others_move_no_cursor() -> None:
    nasty = "\x1b[2J\x1b]0;title\x07evil\r\n\x9b31m\u202eab"
    run = Run(Path("/x"), "x", f"x{nasty}")
    shown = RunView(
        replace(status(), run=run, why=nasty, nodes=nasty),
        TrainingProgress(1, 2),
        values={f"train_{nasty}": 1.0},
        nodes=[NodeNow(0, nasty, 0.0, cpus=2, cpu=1.0)],
        ranks=[RankNow(0, nasty)],
        last_lines=[nasty],
    )
    console = Console(force_terminal=True, color_system="truecolor", no_color=True)
    for rows in ("ranks", "nodes"):
        for line in frame(shown, 80, 24, ViewSettings(rows=rows)).lines:
            text = render_line(console, line).replace("\x1b[0m", "")
            for code in range(10):
                text = text.replace(f"\x1b[{code}m", "").replace(f"\x1b[1;{code}m", "")
            assert text.isprintable(), repr(text)


def test_no_color_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = frame(run_view(), 80, 24).lines
    coloured = "".join(
        render_line(Console(force_terminal=True, color_system="standard"), line) for line in lines
    )
    assert "\x1b[32m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = "".join(
        render_line(Console(force_terminal=True, color_system="standard"), line) for line in lines
    )
    assert "\x1b[3" not in plain
    assert "\x1b[4" not in plain
