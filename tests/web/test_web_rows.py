"""The list of runs tells the same as their pages."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.runs.folder import Run
from allranks.web.following import States
from allranks.web.rows import Rows
from monitor_rig import look, make_run


def _row(run: Run) -> dict[str, Any]:
    return Rows(States()).rows([("x", run)], curves=False)[0]


def test_the_time_to_go_is_that_of_the_page(tmp_path: Path) -> None:
    """Also after a start that was much slower than what came after it."""
    run = make_run(tmp_path, windows=60, finished=False)
    path = run.path / "attempts" / "1" / "progress.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"began": written["began"] - 36_000}))
    page, row = look(run).progress, _row(run)
    assert page.eta_seconds is not None
    assert row["eta"] == pytest.approx(page.eta_seconds)
    assert (row["step"], row["total_steps"]) == (page.step, page.total_steps)


def test_a_run_that_has_stopped_moving_promises_no_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=60, finished=False, end=time.time() - 3600)
    assert look(run).progress.stalled_seconds is not None
    assert _row(run)["eta"] is None


def test_a_run_without_metrics_goes_at_the_pace_of_its_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=60, finished=False)
    (run.path / "metrics.jsonl").unlink()
    row = _row(run)
    assert row["step"] == 600
    assert row["eta"] == pytest.approx(look(run).progress.eta_seconds)
