"""Snapshots as text for Prometheus: OpenMetrics 1.0 for an endpoint, the classic format for a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from allranks.observe.export.metric_names import NAMES, RUN_LABELS, Name
from allranks.observe.export.metric_readers import Labels
from allranks.observe.view.model import RunView

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""What an endpoint answers with."""


def exposition(snapshots: Iterable[RunView]) -> str:
    """OpenMetrics text of these runs: what ``/metrics`` of ``allranks web`` gives out."""
    labelled = _labelled(snapshots)
    lines = [line for name in NAMES for line in _family(name, labelled, classic=False)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def classic_text(snapshots: Iterable[RunView]) -> str:
    """Prometheus' older format, which the node exporter's textfile collector takes."""
    labelled = _labelled(snapshots)
    lines = [line for name in NAMES for line in _family(name, labelled, classic=True)]
    return "".join(f"{line}\n" for line in lines)


def _labelled(snapshots: Iterable[RunView]) -> list[tuple[Labels, RunView]]:
    """Each run (and task) once, with the labels that tell it apart; two of the same id by their folders."""
    found: dict[tuple[str, str], tuple[Labels, RunView]] = {}
    for snapshot in snapshots:
        run, task = snapshot.status.run, snapshot.task
        known = found.get((run.id, task))
        name = str(run.path) if known and known[1].status.run.path != run.path else run.id
        labels = dict(zip(RUN_LABELS, (name, snapshot.status.job_id, task), strict=True))
        found[name, task] = (labels, snapshot)
    return list(found.values())


def _family(name: Name, labelled: Sequence[tuple[Labels, RunView]], classic: bool) -> Iterator[str]:
    """Its head and its samples; nothing at all where no run has a value."""
    samples = list(_samples(name, labelled))
    if not samples:
        return
    family = name.sample if classic else name.name
    kind = "gauge" if classic and name.kind == "info" else name.kind
    yield f"# TYPE {family} {kind}"
    if name.unit and not classic:
        yield f"# UNIT {family} {name.unit}"
    yield f"# HELP {family} {name.help}"
    yield from samples


def _samples(name: Name, labelled: Sequence[tuple[Labels, RunView]]) -> Iterator[str]:
    seen: set[str] = set()
    for labels, snapshot in labelled:
        for own, value in name.read(snapshot):
            if value is None:
                continue
            series = f"{name.sample}{{{_pairs({**labels, **own})}}}"
            if series not in seen:  # a series may come once in a text
                seen.add(series)
                yield f"{series} {_number(value)}"


def _pairs(labels: Labels) -> str:
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items() if value)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text.encode("utf-8", "replace").decode("utf-8")


def _number(value: float) -> str:
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
