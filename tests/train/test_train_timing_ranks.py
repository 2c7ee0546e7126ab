"""Two ranks: whose time is whose, and the same weights with marks and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks_script_rig import HERE, Start

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SLEEP = 0.05


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("timing")
    out = folder / "out"
    code, _, err = Start(
        folder, sys.executable, str(HERE / "ranks_script_timing.py"), str(out)
    ).end()
    assert code == 0, err
    return [json.loads(Path(f"{out}.{rank}.json").read_text()) for rank in (0, 1)]


def mean(rows: list[dict[str, Any]], name: str, rank: int) -> float:
    return float(sum(row[name][rank] for row in rows) / len(rows))


def test_who_waits_for_a_slow_rank_shows_communication(seen: list[dict[str, Any]]) -> None:
    """A rank's sleep is its own compute; the others' steps are as long, and they waited."""
    rows = [row for row in seen[0]["steps"] if row["compute_seconds"][0] is not None]
    compute = [mean(rows, "compute_seconds", rank) for rank in (0, 1)]
    waited = [mean(rows, "communication_seconds", rank) for rank in (0, 1)]
    assert compute[1] >= 0.8 * SLEEP
    assert compute[1] > compute[0]
    assert waited[0] > waited[1]
    for row in seen[0]["steps"]:
        assert len(row["step_seconds"]) == 2
        assert min(row["step_seconds"]) >= SLEEP / 2


def test_all_ranks_have_the_same_metrics(seen: list[dict[str, Any]]) -> None:
    for one in seen:
        one["metrics"].pop("epoch_seconds")  # each rank's own
    assert seen[0]["metrics"] == seen[1]["metrics"]
    parts = ("data", "forward", "backward", "communication", "optimizer", "checkpoint", "other")
    found = seen[0]["metrics"]
    total = sum(found[f"{name}_seconds"] for name in parts)
    assert total == pytest.approx(found["step_seconds"], rel=1e-3)


def test_marks_and_counting_change_no_bit(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["marked"] == seen[1]["marked"] == seen[0]["plain"]


def test_every_sample_is_counted_once(seen: list[dict[str, Any]]) -> None:
    """Over both ranks, in a short last step, too."""
    assert seen[0]["samples"] == pytest.approx(95, rel=1e-3)
