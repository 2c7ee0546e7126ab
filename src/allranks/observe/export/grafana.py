"""A dashboard for Grafana, built from a table of panels over the exported names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_COLUMNS = 24
"""The width of Grafana's grid."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RUN = '{run=~"$run"}'


_REPEATED = {"repeat": "run", "repeatDirection": "h", "maxPerRow": 2}
"""Of a panel that comes once for each chosen run."""
_WHO = "{{run}} {{task}}"
"""How the series of a run are called, of a job array those of a task."""


@dataclass(frozen=True)
class PanelQuery:
    """One PromQL expression and the legend of its series."""

    text: str
    legend: str = _WHO


@dataclass(frozen=True)
class Panel:
    """One panel of the dashboard."""

    title: str
    queries: Sequence[PanelQuery]
    width: int = 12
    height: int = 8
    kind: str = "timeseries"
    unit: str = "short"
    help: str = ""
    stacked: bool = False
    """Its series add up, so there is one such panel for each run."""
    low: float | None = 0.0
    high: float | None = None


def _query(name: str, legend: str = "", more: str = "") -> PanelQuery:
    labels = f'{{run=~"$run"{more}}}'
    return PanelQuery(f"allranks_{name}{labels}", f"{_WHO} {legend}".strip())


def _mean(name: str, by: str, legend: str) -> PanelQuery:
    """Query the mean over the tasks of a job array; for any other run the value itself."""
    return PanelQuery(f"avg by (run, {by}) (allranks_{name}{_RUN})", f"{{{{run}}}} {legend}")


_HOST, _RANK = "{{host}}", "rank {{rank}}"
_GPU = "{{host}} gpu {{gpu}}"

PANELS = (
    Panel("State", [PanelQuery(f"allranks_run_state{_RUN} == 1", f"{_WHO}: {{{{state}}}}")], 3, 4, "stat"),
    Panel("Progress", [_query("progress_ratio")], 3, 4, "gauge", "percentunit", high=1),
    Panel("Remaining", [_query("remaining_seconds")], 3, 4, "stat", "s"),
    Panel(
        "Time limit",
        [PanelQuery(f"allranks_deadline_timestamp_seconds{_RUN} - time()")],
        3, 4, "stat", "s", "Until the job ends: it should be more than what remains.",
    ),
    Panel(
        "Since the last step",
        [PanelQuery(f"time() - allranks_last_step_timestamp_seconds{_RUN}")],
        3, 4, "stat", "s", "It grows while a run hangs, and after its end.",
    ),
    Panel("MFU", [_query("mfu_ratio")], 3, 4, "stat", "percentunit"),
    Panel("Goodput", [_query("goodput_ratio")], 3, 4, "gauge", "percentunit", high=1),
    Panel("Attempts", [_query("attempts_total")], 3, 4, "stat"),
    Panel("Loss", [_query("metric", "{{name}}", ',name=~".*loss.*"')], 8, low=None),
    Panel(
        "Throughput",
        [_query("samples_per_second", "samples/s"), _query("tokens_per_second", "tokens/s")], 8,
    ),
    Panel("Learning rate", [_query("learning_rate", "{{name}}")], 8),
    Panel(
        "What a step's time goes to", [_mean("step_phase_seconds", "phase", "{{phase}}")], 24,
        unit="s", stacked=True,
    ),
    Panel(
        "GPU use by rank",
        [_query("gpu_use_ratio", _RANK, ',rank!=""'), _query("gpu_use_ratio", _GPU, ',rank=""')],
        24, 9, "status-history", "percentunit",
        "Share of the time in which a kernel ran, each rank a row; a GPU where no rank is known.",
        high=1,
    ),
    Panel("GPU memory", [_query("gpu_memory_bytes", _GPU)], 8, unit="bytes"),
    Panel("GPU power", [_query("gpu_power_watts", _GPU)], 8, unit="watt"),
    Panel("GPU temperature", [_query("gpu_temperature_celsius", _GPU)], 8, unit="celsius", low=None),
    Panel(
        "Stragglers", [_query("rank_behind_ratio", _RANK)], 12, unit="percentunit", low=None,
        help="By which share a rank's own work takes longer than the median of the others.",
    ),
    Panel(
        "Own work of each rank",
        [
            PanelQuery(
                f"allranks_rank_data_seconds{_RUN} + allranks_rank_compute_seconds{_RUN}",
                f"{_WHO} {_RANK}",
            )
        ],
        unit="s",
        help="Data and compute: all other ranks wait for the longest.",
    ),
    Panel(
        "CPUs busy", [_query("node_cpus_busy", _HOST), _query("node_cpus", "{{host}} may use")], 6,
    ),
    Panel(
        "Memory",
        [_query("node_memory_bytes", _HOST), _query("node_memory_limit_bytes", "{{host}} limit")],
        6, unit="bytes",
    ),
    Panel(
        "Network",
        [
            _query("node_network_receive_bytes_per_second", "{{host}} in"),
            _query("node_network_transmit_bytes_per_second", "{{host}} out"),
        ],
        6, unit="Bps",
    ),
    Panel(
        "Disk",
        [
            _query("node_disk_read_bytes_per_second", "{{host}} read"),
            _query("node_disk_write_bytes_per_second", "{{host}} write"),
        ],
        6, unit="Bps",
    ),
    Panel(
        "Time of the attempts", [_query("attempt_seconds", "{{attempt}} {{outcome}}")], 24, unit="s",
        stacked=True,
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it, with the data source and the runs to choose on top."""
    return {
        "title": "allranks",
        "uid": "allranks",
        "tags": ["allranks", "training"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _run_variable()]},
        "panels": list(_panels()),
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _run_variable() -> dict[str, Any]:
    query = "label_values(allranks_run_info, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "runs"},
        "refresh": 2,
        "sort": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Place the panels in rows from left to right; a row is as high as its highest panel."""
    x = y = tallest = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        yield _panel(panel, number, place)
        x, tallest = x + panel.width, max(tallest, panel.height)


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel.title,
        "description": panel.help,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + order),
                "datasource": _SOURCE,
                "expr": query.text,
                "legendFormat": query.legend,
            }
            for order, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        **(_REPEATED if panel.stacked else {}),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    limits = {"min": panel.low, "max": panel.high}
    found: dict[str, Any] = {"unit": panel.unit}
    found |= {name: limit for name, limit in limits.items() if limit is not None}
    if panel.kind == "status-history":
        found["color"] = {"mode": "continuous-RdYlGr"}
        found["custom"] = {"fillOpacity": 90, "lineWidth": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 60 if panel.stacked else 0
        found["custom"] = {"stacking": stacking, "fillOpacity": fill, "showPoints": "never"}
    return found


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        text = "name" if panel.title == "State" else "auto"
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text}
    if panel.kind == "gauge":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "status-history":
        return {"showValue": "never", "rowHeight": 0.9, "legend": {"showLegend": False}}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
