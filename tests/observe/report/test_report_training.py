"""Losses that are lost, and scripts that train several times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_rig import given

from allranks.observe.report.report_files import Report, report_run
from allranks.observe.report.run_facts import run_facts
from allranks.observe.report.verdict import tiles
from allranks.runs import Run
from view_rig import make_run

Row = dict[str, Any]


def rewritten(run: Run, change: Callable[[list[Row]], list[Row]]) -> Run:
    """The run with other lines of metrics."""
    path = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
    return run


def lost_from(begin: int, end: int = 10**6) -> Callable[[list[Row]], list[Row]]:
    """Losses that are not finite from one step to another, as a Trainer writes them."""

    def change(rows: list[Row]) -> list[Row]:
        for row in rows:
            if begin <= row["step"] < end:
                bad = [name for name in ("train_loss", "val_loss") if name in row]
                row |= {**dict.fromkeys(bad), "nonfinite": bad}
        return rows

    return change


def drawn(report: Report, name: str) -> str:
    return next(each.svg for each in report.plots if each.id == name)


def test_a_training_that_diverged_is_not_praised(tmp_path: Path) -> None:
    report = report_run(rewritten(make_run(tmp_path, windows=60), lost_from(120)))
    assert report.verdict == "It completed, but something went wrong: look at the advice first."
    assert report.advice[0].text.startswith(
        "The loss is not finite since step 120 of 600: 80 % of the run was wasted. Try a lower"
    )
    assert report.facts.diverged == {"train_loss": 120, "val_loss": 200}
    moods = {tile.title: tile.mood for tile in tiles(report.facts)}
    assert (moods["Training loss"], moods["Validation loss"]) == ("bad", "bad")
    assert report.facts.best["train_loss"] > 0
    loss = drawn(report, "loss")
    assert "not finite since step 120" in loss
    assert ">600</text>" in loss  # the axis goes on to the last step
    assert json.loads(report.text("json"))["diverged"] == {"train_loss": 120, "val_loss": 200}


@pytest.mark.parametrize(("begin", "end"), [(120, 200), (10**6, 10**6)])
def test_a_loss_that_came_back_is_no_news(tmp_path: Path, begin: int, end: int) -> None:
    report = report_run(rewritten(make_run(tmp_path, windows=60), lost_from(begin, end)))
    assert report.facts.diverged == {}
    assert "not finite" not in report.text("html")


def test_a_loss_that_never_was_finite(tmp_path: Path) -> None:
    report = report_run(rewritten(make_run(tmp_path, windows=60), lost_from(0)))
    assert report.facts.diverged["train_loss"] == 10
    assert report.advice[0].id == "diverged"
    assert "loss" not in [each.id for each in report.plots]


@pytest.mark.parametrize(
    ("changes", "words", "command"),
    [
        ({"ended": False, "state": "running"}, "since step 200 of 1,000: further steps", "allranks cancel train"),
        ({}, "EarlyStopping(stop_on_nan=True)", "TrainConfig(clip_norm=1.0)"),
        ({"settings": {"clip_norm": "1.0", "precision": "fp16"}}, "bf16 in place of fp16", ""),
        ({"settings": {}}, "80 % of the run was wasted. Try a lower learning rate", ""),
        ({"diverged": {"val_loss": 500}}, "The validation loss is not finite since step 500 of 1,000. Try", ""),
    ],
)  # fmt: skip
def test_what_is_advised_then(changes: dict[str, Any], words: str, command: str) -> None:
    advice = given(**{"diverged": {"train_loss": 200}, **changes})["diverged"]
    assert words in advice.text
    assert advice.command.startswith(command)
    assert advice.severity == "error"


def again(rows: list[Row]) -> list[Row]:
    """The same lines once more, later and as another fit."""
    later = rows[-1]["time"] - rows[0]["time"] + 1
    return rows + [{**row, "time": row["time"] + later, "fit": 2} for row in rows]


def test_of_several_trainings_the_last_is_drawn(tmp_path: Path) -> None:
    run = rewritten(make_run(tmp_path, windows=30), again)
    path = run.path / "metrics.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"train_loss": 1e-9}) + "\n" + rest)
    report = report_run(run)
    for name in ("loss", "throughput"):
        for way in re.findall(r'<polyline[^>]* points="([^"]*)"', drawn(report, name)):
            xs = [float(point.split(",")[0]) for point in way.split()]
            assert xs == sorted(xs)
    labels = re.findall(r'y="246"[^>]*>([\d,]+)</text>', drawn(report, "phases"))
    assert len(labels) > 3
    assert labels == sorted(labels, key=int)
    assert report.facts.best["train_loss"] > 1e-6
    assert any("trained several times" in each for each in report.facts.limitations)


def test_one_training_is_told_without_a_word_about_others(tmp_path: Path) -> None:
    found, _ = run_facts(make_run(tmp_path, windows=30))
    assert not any("several times" in each for each in found.limitations)
