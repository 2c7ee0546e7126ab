"""The files of a run, followed: each refresh reads only what was added.

Nothing is written, so runs of others can be watched. Every file may be absent, torn or grow at any moment.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from allranks.core.json_numbers import ABSENT, finite_array, number_or_nan
from allranks.errors import RunNotFoundError
from allranks.observe.view.array_tasks import RunAttempts
from allranks.observe.view.metric_columns import MetricTables
from allranks.runs.atomic_files import is_there
from allranks.runs.attempt import Attempt, Rank
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.metrics_file import MetricsFile
from allranks.runs.metrics_tables import RANK_LISTS
from allranks.runs.node_samples import NodeSource, find_nodes
from allranks.runs.run_folder import RESUBMITTED, Run

MOST = 480
GPU_VALUES = ("use", "memory", "power", "temperature")

Pick = Callable[[Mapping[str, Any]], "array[float]"]


class EvenSamples:
    """At most ``most`` lines of a file (and the last one), as (time, numbers)."""

    def __init__(self, file: JsonlTail, pick: Pick, most: int = MOST) -> None:
        self._file = file
        self._pick = pick
        self._most = most
        self._kept: dict[int, tuple[float, array[float]]] = {}
        self._stride = 1
        self._version: tuple[int, int] = (0, 0)

    def refresh(self, version: int = 0) -> None:
        """Read missing lines; all of them when the file, or what ``version`` stands for, has changed."""
        if self._version != (self._file.generation, version):
            self._version = (self._file.generation, version)
            self._kept.clear()
            self._stride = 1
        size = len(self._file)
        while size > self._most * self._stride:
            self._stride *= 2
        wanted = dict.fromkeys([*range(0, size, self._stride), *range(max(size - 1, 0), size)])
        self._kept = {place: kept for place, kept in self._kept.items() if place in wanted}
        missing = [place for place in wanted if place not in self._kept]
        for place, row in zip(missing, self._file.at(missing), strict=False):
            self._kept[place] = (number_or_nan(row.get("time")), self._pick(row))

    def __len__(self) -> int:
        return len(self._kept)

    def lines(self) -> list[tuple[float, array[float]]]:
        """Return the lines in the order of the file; those without a time are left out."""
        found = (self._kept[place] for place in sorted(self._kept))
        return [(time, values) for time, values in found if time == time]


def rank_samples(row: Mapping[str, Any]) -> array[float]:
    """Return the lists of a window one after the other, each padded to the longest."""
    lists = [row.get(name) for name in RANK_LISTS]
    size = max((len(each) for each in lists if isinstance(each, list)), default=0)
    values = array("f")
    for each in lists:
        found = finite_array("f", each) if isinstance(each, list) else array("f")
        values.extend(found)
        values.extend([ABSENT] * (size - len(found)))
    return values


def node_samples(source: NodeSource, local_rank: int, row: Mapping[str, Any]) -> array[float]:
    """Return the busy CPUs, then for each GPU its number and GPU_VALUES."""
    values = array("f", [number_or_nan(row.get("cpu"))])
    for gpu, about in source.gpus_in(local_rank, row):
        values.append(number_or_nan(gpu))
        values.extend(number_or_nan(about.get(name)) for name in GPU_VALUES)
    return values


_MANY_NODES = 8
"""With more of them, fewer samples of each make a heat map."""
COARSE_SECONDS = 2.0
"""Seconds; a second change within them may leave the same time on a file or folder."""
_SIGNS = ("attempt.json", "end.json", "progress.json", "ranks", "failures", "nodes", "interrupted")

Stamp = tuple[int, int, int]


class AttemptSource:
    """One attempt: its nodes' samples, its windows of steps, its ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.nodes: dict[int, NodeSource] = {}
        self.steps: JsonlTail = JsonlTail(path / "steps.jsonl")
        """One object per window of steps, each read on access."""
        self.attempt = Attempt.open(path)
        self.ranks: list[Rank] = []
        self.settled = False
        """Another attempt follows it, and its end was read: nothing will be added."""
        self._stamps: dict[str, Stamp] = {}
        self._noticed: dict[str, float] = {}
        self._windows = EvenSamples(self.steps, rank_samples)
        self._samples: dict[tuple[int, int], EvenSamples] = {}

    def refresh(self) -> bool:
        """Read what was added; True when anything changed."""
        stamps = {name: _stamp(self.path / name) for name in _SIGNS}
        new = [name for name in _SIGNS if stamps[name] != self._stamps.get(name)]
        self._stamps = stamps
        changed = self._read_small_files(new) or bool(new)
        grown = [node.refresh() for node in self.nodes.values()]
        return self.steps.refresh() or any(grown) or changed

    def _read_small_files(self, new: list[str]) -> bool:
        """Read files that changed now or recently; True when their content differs."""
        now = time.monotonic()
        self._noticed.update(dict.fromkeys(new, now))
        recent = {name for name, when in self._noticed.items() if now - when <= COARSE_SECONDS}
        before = self.attempt, self.ranks
        if recent:
            self.attempt = Attempt.open(self.path)
            find_nodes(self.path, self.nodes)
        if "ranks" in recent:  # hundreds of files, so not every time
            self.ranks = self.attempt.ranks()
        return before != (self.attempt, self.ranks)

    def windows(self) -> EvenSamples:
        """Return windows of steps, evenly spaced over the attempt."""
        self._windows.refresh()
        return self._windows

    def samples(self, node: int, local_rank: int) -> EvenSamples:
        """Return samples of one file of a node, evenly spaced over the attempt."""
        source = self.nodes[node]
        key = (node, local_rank)
        if key not in self._samples:
            few = MOST if len(self.nodes) <= _MANY_NODES else MOST // 2
            file = source.files[local_rank]
            self._samples[key] = EvenSamples(file, partial(node_samples, source, local_rank), few)
        self._samples[key].refresh(source.numbering)
        return self._samples[key]


class RunSource(MetricTables):
    """A run as its last refresh found it; for one thread at a time.

    Of a job array it follows one task: the requested one, else the one that began last of those that
    still run, or of all when none does; and when that one has ended, another that runs.
    """

    def __init__(
        self, run: Run, task: str | None = None, run_attempts: RunAttempts | None = None
    ) -> None:
        super().__init__()
        self.run = run
        self.task = task
        """Which task it follows."""
        self._asked_for = task
        self.run_attempts = run_attempts or RunAttempts(run.path)
        """The attempts of all tasks."""
        self.attempts: dict[int, AttemptSource] = {}
        self._metrics: MetricsFile | None = None
        self._owns_attempts = run_attempts is None
        self._task_sources: dict[str, RunSource] = {}
        self._is_array = False
        self._stamps: tuple[Stamp, ...] = ()

    def refresh(self) -> bool:
        """Read what was added; True when anything changed."""
        found = self._refresh_run() | self._find_attempts()
        changed = [self._refresh_attempt(each) for each in self.attempts.values()]
        return self._refresh_metrics() or found or any(changed)

    @property
    def tasks(self) -> list[str]:
        """Return the tasks of a job array that have started; empty without an array."""
        return list(self.run_attempts.last())

    def task_sources(self) -> list[RunSource]:
        """Return an up-to-date source for each started task of an array; else this one alone."""
        for task in self.tasks:
            if task != self.task and task not in self._task_sources:
                self._task_sources[task] = RunSource(self.run, task, self.run_attempts)
        for source in self._task_sources.values():
            source.refresh()
        return [self._task_sources.get(task, self) for task in self.tasks] or [self]

    @property
    def last(self) -> AttemptSource | None:
        """Return the current attempt, or the one that ended last."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    @property
    def folder(self) -> Path:
        """Return the folder of the metrics: the run folder, or that of the array's task."""
        own = self.run.path / "tasks" / self.task if self.task else None
        return own if own is not None and is_there(own) else self.run.path

    def _refresh_run(self) -> bool:
        """Reopen the run when its record changed: a resumed run has another job id."""
        stamps = tuple(_stamp(self.run.path / name) for name in ("run.json", RESUBMITTED))
        before, self._stamps = self._stamps, stamps
        if stamps != before:
            with suppress(RunNotFoundError):  # it was removed while it was watched
                self.run = Run.open(self.run.path)
            self._is_array = bool(self.run.array)
        return stamps != before

    def _find_attempts(self) -> bool:
        if self._owns_attempts:
            self.run_attempts.refresh()
        self._choose_task()
        if self._is_array and self.task is None:
            return False  # whose an attempt is, is not known before its file is there
        known = self.run_attempts.numbers(self.task or "")
        new = [each for each in known if each not in self.attempts]
        for each in new:
            self.attempts[each] = AttemptSource(self.run.path / "attempts" / str(each))
        return bool(new)

    def _choose_task(self) -> None:
        if self._asked_for or not self.run_attempts.last():
            return
        over = self.task in self.run_attempts.ended_tasks() and self.run_attempts.running_tasks()
        if self.task is None or over:
            self.task = self.run_attempts.newest_task()
            self.attempts = {}

    def _refresh_attempt(self, each: AttemptSource) -> bool:
        if each.settled:
            return False
        each.settled = each.number != max(self.attempts) and bool(each.attempt.outcome)
        return each.refresh()

    def _refresh_metrics(self) -> bool:
        folder = self.folder
        replaced = self._metrics is None or self._metrics.path.parent != folder
        file = MetricsFile(folder) if self._metrics is None or replaced else self._metrics
        self._metrics = file
        changed = file.refresh() or replaced
        if changed:
            self.clear()
        while rows := file.read():
            self.add(rows)
            changed = True
        return changed


def _stamp(path: Path) -> Stamp:
    try:
        about = path.stat()
    except OSError:
        return 0, 0, 0
    return about.st_mtime_ns, about.st_size, about.st_ino
