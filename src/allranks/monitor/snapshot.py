"""A look at a run: ``take(Source(run))``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from allranks.monitor.columns import HEAD, Columns
from allranks.monitor.machines import nodes_now, ranks_now
from allranks.monitor.model import Snapshot
from allranks.monitor.pace import progress
from allranks.monitor.phases import phases
from allranks.monitor.series import thin
from allranks.monitor.source import Source
from allranks.runs.attempts import Failure
from allranks.runs.ledger import goodput, stories
from allranks.runs.lines import LogLine
from allranks.runs.logs import read_logs
from allranks.schedulers.status import RunStatus, run_statuses

_POINTS = 200
_WINDOWS = 20
"""The phases shown are means over so many of the last windows."""
_LINES = 5
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursors
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)


def take(source: Source, status: RunStatus | None = None) -> Snapshot:
    """The run as the last refresh of its source found it; its state is asked for unless given.

    Whatever the run has not (metrics, nodes, GPUs, attempts) is empty, never an error.
    """
    status = status or run_statuses([source.run])[0]
    last = source.last
    nodes = nodes_now(last) if last else []
    entries = stories(source.lives(), status.state.active)
    error = last.attempt.first_failure() if last else None
    return Snapshot(
        status=status,
        progress=progress(source, status),
        values=_values(source),
        loss=_curve(source.train, "train_loss"),
        val_loss=_curve(source.val, "val_loss"),
        phases=phases(source, _WINDOWS),
        nodes=nodes,
        ranks=ranks_now(last, nodes) if last else [],
        attempts=entries,
        goodput=goodput(entries) if entries else None,
        error=error,
        last_lines=_last_lines(source, error),
        time=time.time(),
    )


def plain_text(line: str) -> str:
    """A line without colours and control characters, which would play with the reader's terminal."""
    return _CONTROL.sub("", line).replace("\t", "    ")


def _values(source: Source) -> dict[str, float]:
    """The latest of each metric; NaN where the latest was not finite."""
    found: dict[str, float] = {}
    for columns in (source.test, source.val, source.epoch, source.train):
        for name in columns.names:
            value = columns.last(name)
            if name not in HEAD and value is not None:
                found[name] = value
    return found | dict.fromkeys(source.nonfinite, float("nan"))


def _curve(columns: Columns, name: str) -> list[tuple[float, float]]:
    """Of the training under way: a script that trains several times begins each at step 0."""
    if name not in columns:
        return []
    steps = [step or 0 for step in columns["step"]]
    begin = max((at for at in range(1, len(steps)) if steps[at] < steps[at - 1]), default=0)
    return list(zip(*thin(steps[begin:], columns.part(name, begin), _POINTS), strict=True))


def _last_lines(source: Source, error: Failure | None) -> list[str]:
    """Of the rank that failed first, else of rank 0; else what Slurm wrote."""
    last = source.last
    if last is None or not last.attempt.log_files():
        return _shown(read_logs(source.run, tail=_LINES))
    rank = error.rank if error else 0
    return _shown(read_logs(source.run, ranks=[rank], tail=_LINES, attempt=last.number))


def _shown(lines: Iterable[LogLine]) -> list[str]:
    return [plain_text(line.text) for line in lines]
