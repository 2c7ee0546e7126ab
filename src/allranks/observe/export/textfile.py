"""Snapshots into a file, again and again: for the node exporter's textfile collector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from allranks.cluster.slurm.job_states import JobState
from allranks.core.formatting import span
from allranks.errors import SlurmError, UsageError
from allranks.observe.export.openmetrics import classic_text, exposition
from allranks.observe.view.model import RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.runs.atomic_files import put_text
from allranks.runs.run import Run
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus

PATIENCE = 600.0
"""Seconds for which Slurm may say nothing of the jobs before this ends."""
ANSWER = 10.0
"""Seconds that a look waits for Slurm."""


def text_of(snapshots: Sequence[RunView], openmetrics: bool = False) -> str:
    """In the format that was asked for."""
    return exposition(snapshots) if openmetrics else classic_text(snapshots)


def looks(
    runs: Sequence[Run],
    every: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[RunView]]:
    """The runs as they are now, of job arrays every task; with ``every`` again after so many seconds.

    It goes on until all have ended; SlurmError when of the others nothing has been known for long.
    """
    sources = [RunSource(run) for run in runs]
    known = clock()
    while True:
        for source in sources:
            source.refresh()
        statuses = run_statuses([Run.open(run.path) for run in runs], ANSWER)
        found = zip(sources, statuses, strict=True)
        yield [view_run(each, status) for source, status in found for each in source.each()]
        lives = [status for status in statuses if not _over(status)]
        if every is None or not lives:
            return
        if any(one.state is not JobState.UNKNOWN for one in lives):
            known = clock()
        elif clock() - known >= PATIENCE:
            raise _silence(lives)
        sleep(every)


def _silence(lives: Sequence[RunStatus]) -> SlurmError:
    names = ", ".join(one.run.id for one in lives)
    why = next((one.why for one in lives if one.why), "")
    return SlurmError(
        f"For {span(PATIENCE)} nothing has been known of {names}{f': {why}' if why else '.'}\n"
        "The numbers are those of the last look. Start it again when Slurm answers."
    )


def write_textfile(path: Path, text: str) -> None:
    """In one step, so that the collector never reads half a file."""
    try:
        put_text(path, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.\nChoose another file: --output FILE.prom"
        ) from None


def _over(status: RunStatus) -> bool:
    """Ended, and no further attempt was announced."""
    last = status.run.last_attempt
    return status.state.ended and not (last is not None and last.has_successor)
