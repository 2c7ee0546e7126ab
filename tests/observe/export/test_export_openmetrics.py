"""The text for Prometheus: valid in both formats, complete, and as the page says."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from openmetrics_check import Family, read

from allranks.observe.export.exported_metrics import EXPORTED_METRICS, RUN_LABELS, UNITS
from allranks.observe.export.prometheus import classic_text, openmetrics_text
from allranks.observe.view.model import NodeNow, RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from run_view_rig import (
    RUN,
    VALUES,
    failed,
    one_task,
    own_script,
    pending,
    run_view,
    stalled,
    status,
)

DOCS = Path(__file__).parents[3] / "docs" / "exporters.md"
ALL = (run_view, pending, own_script, failed)


def _value(families: dict[str, Family], sample: str, /, **labels: str) -> float:
    """The one value whose labels include these."""
    found = [
        value
        for family in families.values()
        for (name, pairs), value in family.samples.items()
        if name == sample and labels.items() <= dict(pairs).items()
    ]
    assert len(found) == 1, (sample, labels, found)
    return found[0]


@pytest.mark.parametrize("make", ALL)
def test_both_texts_are_valid(make: object) -> None:
    shown: RunView = make()  # type: ignore[operator]
    families = read(openmetrics_text([shown]))
    assert {name.name for name in EXPORTED_METRICS} >= families.keys()
    older = read(classic_text([shown]), classic=True)
    assert {name.sample for name in EXPORTED_METRICS} >= older.keys()
    assert len(older) == len(families)


def test_what_it_says() -> None:
    families = read(openmetrics_text([run_view()]))
    run = {"run": RUN.id, "job_id": "4711"}
    assert _value(families, "allranks_step", **run) == 12400
    assert _value(families, "allranks_metric", name="train_loss") == VALUES["train_loss"]
    assert _value(families, "allranks_metric", name="val_accuracy") == VALUES["val_accuracy"]
    assert _value(families, "allranks_learning_rate", name="lr") == VALUES["lr"]
    assert _value(families, "allranks_mfu_ratio", **run) == VALUES["mfu"]
    assert _value(families, "allranks_run_state", state="running") == 1
    assert _value(families, "allranks_run_state", state="failed") == 0
    assert _value(families, "allranks_step_phase_seconds", phase="backward") == 0.1102
    assert _value(families, "allranks_rank_straggler", rank="5", host="node2") == 1
    assert _value(families, "allranks_rank_straggler", rank="4") == 0
    assert _value(families, "allranks_gpu_use_ratio", host="node2", gpu="1", rank="5") == 0.97
    assert _value(families, "allranks_gpu_power_watts", node="1", gpu="1") == 655
    assert _value(families, "allranks_node_cpus_busy", host="node1") == 12.4
    assert _value(families, "allranks_attempts_total", **run) == 2
    assert _value(families, "allranks_attempt_seconds", attempt="1", outcome="timed out") == 3700
    assert families["allranks_gpu_temperature_celsius"].unit == "celsius"
    assert families["allranks_run"].kind == "info"


def test_nothing_is_said_that_is_not_known() -> None:
    families = read(openmetrics_text([pending()]))
    assert "allranks_step" not in families
    assert "allranks_gpu_use_ratio" not in families
    assert read(openmetrics_text([])) == {}
    assert classic_text([]) == ""


def test_every_value_of_a_training_is_there_once() -> None:
    """What has a name of its own is not among the metrics; all else is."""
    values = {
        **VALUES,
        "epoch": 3.0,
        "flops_per_second": 1e15,
        "train_nap_seconds": 1.0,
        "lr_b": 2.0,
    }
    shown = replace(run_view(), values=values)
    families = read(openmetrics_text([shown]))
    names = {dict(pairs)["name"] for _, pairs in families["allranks_metric"].samples}
    assert names == {"train_loss", "grad_norm", "val_loss", "val_accuracy", "train_nap_seconds"}
    rates = {dict(pairs)["name"] for _, pairs in families["allranks_learning_rate"].samples}
    assert rates == {"lr", "lr_b"}


def test_odd_texts_and_numbers_are_written_as_the_format_wants() -> None:
    odd = 'a "quoted" \\ path\nwith a line'
    shown = replace(
        run_view(),
        values={odd: math.nan, "up": math.inf, "down": -math.inf, "big": 1e300, "whole": 3.0},
        nodes=[NodeNow(0, odd, 1.5, cpus=2), NodeNow(1, "\ud800", 1.0, cpus=2)],
        ranks=(),
    )
    text = openmetrics_text([shown])
    text.encode("utf-8")
    families = read(text)
    assert math.isnan(_value(families, "allranks_metric", name=odd))
    assert _value(families, "allranks_metric", name="down") == -math.inf
    assert _value(families, "allranks_metric", name="big") == 1e300
    assert _value(families, "allranks_node_cpus", host=odd) == 2
    assert 'name="whole"} 3\n' in text
    assert "} +Inf\n" in text


def test_many_runs_stand_family_by_family_and_each_once() -> None:
    other = replace(status(), run=replace(RUN, id="other", path=Path("/other")), job_id="")
    same_id = replace(status(), run=replace(RUN, path=Path("/elsewhere/train-20261115-105757")))
    shown = [
        run_view(),
        replace(run_view(), status=other),
        replace(run_view(), status=same_id),
        run_view(),
    ]
    families = read(openmetrics_text(shown))
    runs = {dict(pairs)["run"] for _, pairs in families["allranks_step"].samples}
    assert runs == {RUN.id, "other", "/elsewhere/train-20261115-105757"}
    assert ("run", "other") in next(
        pairs for _, pairs in families["allranks_step"].samples if ("run", "other") in pairs
    )
    jobs = [dict(pairs).get("job_id") for _, pairs in families["allranks_step"].samples]
    assert sorted(map(str, jobs)) == ["4711", "4711", "None"]


def test_the_tasks_of_an_array_are_series_of_their_own() -> None:
    shown = [replace(one_task(), task=task) for task in ("3", "4", "4")]
    families = read(openmetrics_text(shown))
    for task in ("3", "4"):
        assert _value(families, "allranks_step", run=RUN.id, task=task) == 12400
        assert _value(families, "allranks_run_state", state="running", task=task) == 1
    assert "task=" not in openmetrics_text([run_view()])


def test_when_the_last_step_was_is_no_sample_of_a_node() -> None:
    families = read(openmetrics_text([stalled()]))
    now = _value(families, "allranks_observed_timestamp_seconds")
    assert _value(families, "allranks_last_step_timestamp_seconds") == now - 7200
    assert _value(families, "allranks_last_update_timestamp_seconds") == now - 2


def test_a_whole_run_folder(tmp_path: Path) -> None:
    from view_rig import make_run

    source = RunSource(make_run(tmp_path, ranks=8, slow_rank=3, attempts=2, finished=False))
    source.refresh()
    families = read(openmetrics_text([view_run(source)]))
    missing = {name.name for name in EXPORTED_METRICS} - families.keys()
    assert missing <= {"allranks_epochs"}


def test_prometheus_own_parser_takes_it() -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
    from prometheus_client.parser import text_string_to_metric_families as classic

    shown = [make() for make in (*ALL, one_task)]
    assert list(strict(openmetrics_text(shown)))
    assert list(classic(classic_text(shown)))


def test_names_are_well_formed() -> None:
    names = [name.name for name in EXPORTED_METRICS]
    assert len(set(names)) == len(names)
    for name in EXPORTED_METRICS:
        assert re.fullmatch(r"allranks_[a-z]+(_[a-z]+)*", name.name)
        assert name.help.endswith(".")
        assert '"' not in name.help
        assert "\\" not in name.help
        assert not set(name.labels) & set(RUN_LABELS)
        assert not {"job", "instance"} & {*name.labels, *RUN_LABELS}  # words of Prometheus' own
        assert name.unit in ("", *UNITS)


def test_the_page_lists_every_name() -> None:
    rows = re.findall(r"^\| `(allranks_\w+)` \| (.*?) \| (.+?) \|$", DOCS.read_text(), re.M)
    told = {name: (labels.replace("`", ""), text) for name, labels, text in rows}
    assert told == {
        name.sample: (" ".join(name.labels), name.help.removesuffix("."))
        for name in EXPORTED_METRICS
    }
    assert [name for name, _, _ in rows] == [name.sample for name in EXPORTED_METRICS]
