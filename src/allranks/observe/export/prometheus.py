"""Runs as text for Prometheus: OpenMetrics 1.0 for an endpoint, the classic format for the textfile collector."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from allranks.cluster.slurm.job_states import JobState
from allranks.core.formatting import span
from allranks.errors import SlurmError, UsageError
from allranks.observe.export.exported_metrics import (
    EXPORTED_METRICS,
    RUN_LABELS,
    ExportedMetric,
    Labels,
)
from allranks.observe.view.model import RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.runs.atomic_files import put_text
from allranks.runs.run_folder import Run
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""What an endpoint answers with."""


def openmetrics_text(run_views: Iterable[RunView]) -> str:
    """Return the runs as OpenMetrics text, as ``/metrics`` of ``allranks web`` serves it."""
    labelled = _labelled(run_views)
    lines = [line for name in EXPORTED_METRICS for line in _family(name, labelled, classic=False)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def classic_text(run_views: Iterable[RunView]) -> str:
    """Return the runs in Prometheus' classic format, for the node exporter's textfile collector."""
    labelled = _labelled(run_views)
    lines = [line for name in EXPORTED_METRICS for line in _family(name, labelled, classic=True)]
    return "".join(f"{line}\n" for line in lines)


def _labelled(run_views: Iterable[RunView]) -> list[tuple[Labels, RunView]]:
    """Return each run (and task) once with its labels; runs with the same id are labelled by their
    folders.
    """
    found: dict[tuple[str, str], tuple[Labels, RunView]] = {}
    for run_view in run_views:
        run, task = run_view.status.run, run_view.task
        known = found.get((run.id, task))
        name = str(run.path) if known and known[1].status.run.path != run.path else run.id
        labels = dict(zip(RUN_LABELS, (name, run_view.status.job_id, task), strict=True))
        found[name, task] = (labels, run_view)
    return list(found.values())


def _family(
    name: ExportedMetric, labelled: Sequence[tuple[Labels, RunView]], classic: bool
) -> Iterator[str]:
    """Yield the header and the samples of a metric; nothing where no run has a value."""
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


def _samples(name: ExportedMetric, labelled: Sequence[tuple[Labels, RunView]]) -> Iterator[str]:
    seen: set[str] = set()
    for labels, run_view in labelled:
        for own, value in name.read(run_view):
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


PATIENCE = 600.0
"""Seconds for which Slurm may say nothing of the jobs before this ends."""
ANSWER = 10.0
"""Seconds that a look waits for Slurm."""


def metrics_text(run_views: Sequence[RunView], openmetrics: bool = False) -> str:
    """Return the runs in the requested format."""
    return openmetrics_text(run_views) if openmetrics else classic_text(run_views)


def poll_runs(
    runs: Sequence[Run],
    every: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[RunView]]:
    """Yield views of the runs, of job arrays those of every task; with ``every`` again after so many seconds.

    Stops when all have ended; raises SlurmError when Slurm has not reported the others for long.
    """
    sources = [RunSource(run) for run in runs]
    known = clock()
    while True:
        for source in sources:
            source.refresh()
        statuses = run_statuses([Run.open(run.path) for run in runs], ANSWER)
        found = zip(sources, statuses, strict=True)
        yield [view_run(each, status) for source, status in found for each in source.task_sources()]
        active = [status for status in statuses if not _is_over(status)]
        if every is None or not active:
            return
        if any(one.state is not JobState.UNKNOWN for one in active):
            known = clock()
        elif clock() - known >= PATIENCE:
            raise _no_answer(active)
        sleep(every)


def _no_answer(active: Sequence[RunStatus]) -> SlurmError:
    names = ", ".join(one.run.id for one in active)
    why = next((one.why for one in active if one.why), "")
    return SlurmError(
        f"Slurm has not reported {names} for {span(PATIENCE)}{f': {why}' if why else '.'}\n"
        "The file has the last known numbers. Start it again when Slurm answers."
    )


def write_textfile(path: Path, text: str) -> None:
    """Write the file atomically, so that the collector never reads half of it."""
    try:
        put_text(path, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.\nChoose another file: --output FILE.prom"
        ) from None


def _is_over(status: RunStatus) -> bool:
    """Return whether the run has ended and no further attempt was announced."""
    last = status.run.last_attempt
    return status.state.ended and not (last is not None and last.has_successor)
