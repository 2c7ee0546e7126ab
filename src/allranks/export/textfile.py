"""Snapshots into a file, again and again: for the node exporter's textfile collector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from allranks.errors import UsageError
from allranks.export.openmetrics import classic_text, exposition
from allranks.monitor.model import Snapshot
from allranks.monitor.snapshot import take
from allranks.monitor.source import Source
from allranks.runs.files import write_text
from allranks.runs.folder import Run
from allranks.schedulers.status import RunStatus, run_statuses
from allranks.slurm.states import State

PATIENCE = 5
"""How often Slurm is asked for a job that it does not know before the run counts as over."""


def text_of(snapshots: Sequence[Snapshot], openmetrics: bool = False) -> str:
    """In the format that was asked for."""
    return exposition(snapshots) if openmetrics else classic_text(snapshots)


def looks(
    runs: Sequence[Run], every: float | None = None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[list[Snapshot]]:
    """The runs as they are now; with ``every`` again after so many seconds, until all have ended."""
    sources = [Source(run) for run in runs]
    unknown = 0
    while True:
        for source in sources:
            source.refresh()
        statuses = run_statuses([Run.open(run.path) for run in runs])
        yield [take(source, status) for source, status in zip(sources, statuses, strict=True)]
        lives = [status for status in statuses if not _over(status)]
        unknown = unknown + 1 if all(one.state is State.UNKNOWN for one in lives) else 0
        if every is None or not lives or unknown >= PATIENCE:
            return
        sleep(every)


def write_textfile(path: Path, text: str) -> None:
    """In one step, so that the collector never reads half a file."""
    try:
        write_text(path, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.\nChoose another file: --output FILE.prom"
        ) from None


def _over(status: RunStatus) -> bool:
    """Ended, and no further attempt was announced."""
    last = status.run.last_attempt
    return status.state.ended and not (last is not None and last.followed)
