"""The dashboard: whole, over names that exist, nothing on top of something else."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from allranks.observe.export.exported_metrics import EXPORTED_METRICS, RUN_LABELS
from allranks.observe.export.grafana import dashboard
from command_rig import Allranks

LABELS = {name.sample: {*name.labels, *RUN_LABELS} for name in EXPORTED_METRICS}


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def _expressions(panels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(t["expr"], t["legendFormat"]) for panel in panels for t in panel["targets"]]


def test_the_command_prints_it(allranks: Allranks) -> None:
    done = allranks("export", "grafana")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dashboard()


def test_every_expression_asks_for_what_is_exported(panels: list[dict[str, Any]]) -> None:
    for text, legend in _expressions(panels):
        names = re.findall(r"\ballranks_\w+", text)
        assert names
        assert set(names) <= LABELS.keys()
        known = set.intersection(*(LABELS[name] for name in names))
        asked = set(re.findall(r"[{,](\w+)=~?\"", text)) | set(re.findall(r"{{(\w+)}}", legend))
        assert asked <= known, (text, legend)
        assert 'run=~"$run"' in text
        for opening, closing in ("()", "{}"):
            assert text.count(opening) == text.count(closing)
    query = dashboard()["templating"]["list"][1]["definition"]
    assert set(re.findall(r"allranks_\w+", query)) <= LABELS.keys()


def test_what_is_asked_about_a_training_has_a_panel(panels: list[dict[str, Any]]) -> None:
    text = " ".join(text for text, _ in _expressions(panels))
    for wanted in (
        "metric", "samples_per_second", "step_phase_seconds", "gpu_use_ratio", "gpu_memory_bytes",
        "gpu_power_watts", "gpu_temperature_celsius", "rank_behind_ratio", "node_cpus_busy",
        "node_network_receive_bytes_per_second", "goodput_ratio",
    ):  # fmt: skip
        assert f"allranks_{wanted}{{" in text
    stacked = [
        panel["title"]
        for panel in panels
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode")
        == "normal"
    ]
    assert "What a step's time goes to" in stacked


def test_runs_are_told_apart(panels: list[dict[str, Any]]) -> None:
    """Several may be chosen: each legend names its run, and what adds up is of one run."""
    for _, legend in _expressions(panels):
        assert "{{run}}" in legend
    for panel in panels:
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        adds_up = custom.get("stacking", {}).get("mode") == "normal"
        assert (panel.get("repeat") == "run") is adds_up


def test_the_use_of_gpus_is_told_by_rank(panels: list[dict[str, Any]]) -> None:
    (panel,) = [panel for panel in panels if panel["title"] == "GPU use by rank"]
    known, unknown = panel["targets"]
    assert 'rank!=""' in known["expr"]
    assert known["legendFormat"] == "{{run}} {{task}} rank {{rank}}"
    assert 'rank=""' in unknown["expr"]
    assert "{{gpu}}" in unknown["legendFormat"]


def test_a_run_that_hangs_can_be_seen(panels: list[dict[str, Any]]) -> None:
    text = " ".join(text for text, _ in _expressions(panels))
    assert "time() - allranks_last_step_timestamp_seconds{" in text


def test_panels_have_ids_and_places_of_their_own(panels: list[dict[str, Any]]) -> None:
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        assert place["h"] > 0
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_rows_have_no_gaps(panels: list[dict[str, Any]]) -> None:
    rows: dict[int, int] = {}
    for panel in panels:
        place = panel["gridPos"]
        rows[place["y"]] = rows.get(place["y"], 0) + place["w"]
    assert set(rows.values()) == {24}
