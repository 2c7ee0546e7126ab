"""The columns of a heat map: equally long, with gaps where nothing was measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from allranks.observe.view.heatmap_data import HeatMatrix, heatmap
from allranks.observe.view.run_source import RunSource
from allranks.runs import Run
from view_rig import make_run

START = 1_794_800_000.0


def sampled(tmp_path: Path, times: list[float], **how: bool) -> HeatMatrix:
    """The CPUs of a run whose samples came at these seconds; each keeps as many busy as its time says."""
    run = make_run(tmp_path, ranks=1, gpus_per_node=1, windows=1)
    path = run.path / "attempts" / "1" / "nodes" / "node-00000.jsonl"
    rows = [{"kind": "sample", "time": START + each, "cpu": each} for each in times]
    about = path.read_text().splitlines()[0]
    path.write_text("\n".join([about, *map(json.dumps, rows), ""]))
    return heatmap(refreshed(run), "cpu", 100, **how)


def refreshed(run: Run) -> RunSource:
    source = RunSource(run)
    source.refresh()
    return source


def test_columns_are_equally_long_however_often_was_sampled(tmp_path: Path) -> None:
    """Samples come every 5 seconds at first and every 15 later."""
    times = [5.0 * each for each in range(20)] + [100.0 + 15.0 * each for each in range(20)]
    found = sampled(tmp_path, times)
    widths = {round(after - before, 3) for before, after in pairwise(found.times)}
    assert max(widths) - min(widths) < 0.01
    [row] = found.values
    assert None not in row
    # A column shows what was measured then: the time itself here.
    for end, value in zip(found.times, row, strict=True):
        assert value == pytest.approx(end - START, abs=16)


def test_a_silence_stays_one(tmp_path: Path) -> None:
    found = sampled(tmp_path, [5.0 * each for each in [*range(30), *range(100, 130)]])
    [row] = found.values
    empty = [end - START for end, value in zip(found.times, row, strict=True) if value is None]
    assert min(empty) > 145
    assert max(empty) < 510
    assert max(empty) - min(empty) > 300


def test_one_sample_is_one_column(tmp_path: Path) -> None:
    found = sampled(tmp_path, [7.0])
    assert (found.times, found.values) == ([START + 7], [[7.0]])


def test_maps_of_several_kinds_have_the_same_columns(tmp_path: Path) -> None:
    source = refreshed(make_run(tmp_path, ranks=4, windows=200, attempts=2))
    gpus, waits = (heatmap(source, kind, 120, whole=True) for kind in ("gpu", "wait"))
    assert (gpus.times, gpus.breaks) == (waits.times, waits.breaks)
    assert len(gpus.breaks) == 1
    assert heatmap(source, "gpu", 120).times != heatmap(source, "wait", 120).times


def test_a_time_that_makes_no_sense_is_survived(tmp_path: Path) -> None:
    found = sampled(tmp_path, [1.0, 2.0, -1e308, 1e308])
    assert len(found.values[0]) == len(found.times) == 1


def test_it_knows_when_its_first_column_begins(tmp_path: Path) -> None:
    run = make_run(tmp_path, windows=20, attempts=2)
    source = RunSource(run)
    source.refresh()
    made = heatmap(source, "step", 2)
    first = source.attempts[min(source.attempts)].steps[0]["time"]
    assert made.begin == first <= made.times[0]
