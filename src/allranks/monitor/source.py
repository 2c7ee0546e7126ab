"""The files of one run, followed: what was added since the last look is read, nothing twice.

Nothing is written, so runs of others can be watched. Every file may be absent, torn or grow at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from allranks.errors import RunNotFoundError
from allranks.monitor.columns import Columns
from allranks.monitor.sampled import MOST, Sampled, node_samples, rank_samples
from allranks.runs.attempts import Attempt, Rank, attempt_numbers
from allranks.runs.folder import RESUBMITTED, Run
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.node_samples import NodeSource, find_nodes

_AT_ONCE = 20_000
_MANY_NODES = 8
"""With more of them, fewer samples of each make a heat map."""
_SIGNS = ("attempt.json", "end.json", "progress.json", "ranks", "failures", "nodes", "interrupted")

__all__ = ["AttemptSource", "Columns", "NodeSource", "Source"]


class AttemptSource:
    """One attempt: its nodes' samples, its windows of steps, its ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.nodes: dict[int, NodeSource] = {}
        self.steps: JsonlTail = JsonlTail(path / "steps.jsonl")
        """One object per window of steps, each read when it is asked for."""
        self.attempt = Attempt.open(path)
        self.ranks: list[Rank] = []
        self.settled = False
        """Another attempt follows it, and it was read since: nothing will be added."""
        self._stamps: dict[str, int] = {}
        self._windows = Sampled(self.steps, rank_samples)
        self._samples: dict[tuple[int, int], Sampled] = {}

    def refresh(self) -> bool:
        """Look at what was added; True when anything changed."""
        stamps = {name: _changed(self.path / name) for name in _SIGNS}
        before, self._stamps = self._stamps, stamps
        if stamps != before:
            self.attempt = Attempt.open(self.path)
            find_nodes(self.path, self.nodes)
        if stamps["ranks"] != before.get("ranks"):  # hundreds of files, so not every time
            self.ranks = self.attempt.ranks()
        changed = [node.refresh() for node in self.nodes.values()]
        return self.steps.refresh() or any(changed) or stamps != before

    def windows(self) -> Sampled:
        """Windows of steps, evenly spaced over the attempt."""
        self._windows.refresh()
        return self._windows

    def samples(self, node: int, local_rank: int) -> Sampled:
        """Samples of one file of a node, evenly spaced over the attempt."""
        source = self.nodes[node]
        key = (node, local_rank)
        if key not in self._samples:
            few = MOST if len(self.nodes) <= _MANY_NODES else MOST // 2
            file = source.files[local_rank]
            self._samples[key] = Sampled(file, partial(node_samples, source, local_rank), few)
        self._samples[key].refresh(source.numbering)
        return self._samples[key]


class Source:
    """A run as its last refresh found it; for one thread at a time.

    Of a job array it follows one task: the one that began last, or the one asked for.
    """

    def __init__(self, run: Run, task: str | None = None) -> None:
        self.run = run
        self.task = task
        self.train, self.val, self.epoch, self.test = (Columns() for _ in range(4))
        self.attempts: dict[int, AttemptSource] = {}
        self.nonfinite: list[str] = []
        """Metrics that were NaN or infinite in the last line of training steps."""
        self._metrics: JsonlTail | None = None
        self._place: tuple[int, int] = (0, 0)
        self._lives: dict[int, Attempt] = {}
        self._known: set[int] = set()
        self._is_array = False
        self._stamps: tuple[int, ...] = ()

    def refresh(self) -> bool:
        """Look at what was added; True when anything changed."""
        found = self._refresh_run() | self._find_attempts()
        changed = [self._refresh_attempt(each) for each in self.attempts.values()]
        return self._refresh_metrics() or found or any(changed)

    @property
    def tasks(self) -> list[str]:
        """The tasks of a job array that have begun; empty when it is none."""
        return list(dict.fromkeys(each.array_task for each in self.lives() if each.array_task))

    @property
    def last(self) -> AttemptSource | None:
        """The present attempt, or the one that ended last."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    def lives(self) -> list[Attempt]:
        """Every attempt of the run, of all tasks; those that ended are read once."""
        numbers = attempt_numbers(self.run.path / "attempts")
        for number in numbers:
            known = self._lives.get(number)
            if known is None or known.end is None or number == numbers[-1]:
                self._lives[number] = Attempt.open(self.run.path / "attempts" / str(number))
        return [self._lives[number] for number in numbers]

    @property
    def folder(self) -> Path:
        """Where metrics lie: the run folder; of an array that of the task."""
        own = self.run.path / "tasks" / self.task if self.task else None
        return own if own is not None and own.is_dir() else self.run.path

    def _refresh_run(self) -> bool:
        """A run that goes on in another job has its number in these files."""
        stamps = tuple(_changed(self.run.path / name) for name in ("run.json", RESUBMITTED))
        before, self._stamps = self._stamps, stamps
        if stamps != before:
            with suppress(RunNotFoundError):  # it was removed while it was watched
                self.run = Run.open(self.run.path)
            self._is_array = bool(self.run.array)
        return stamps != before

    def _find_attempts(self) -> bool:
        folder = self.run.path / "attempts"
        numbers = [each for each in attempt_numbers(folder) if each not in self._known]
        new = [AttemptSource(folder / str(number)) for number in numbers]
        if self._is_array:  # which task it is, is not known before this file is there
            new = [each for each in new if (each.path / "attempt.json").is_file()]
        self._known.update(each.number for each in new)
        if self.task is None and new:
            self.task = new[-1].attempt.array_task
        mine = [each for each in new if each.attempt.array_task == (self.task or "")]
        self.attempts.update({each.number: each for each in mine})
        return bool(mine)

    def _refresh_attempt(self, each: AttemptSource) -> bool:
        if each.settled:
            return False
        each.settled = each.number != max(self.attempts)
        return each.refresh()

    def _refresh_metrics(self) -> bool:
        path = self.folder / "metrics.jsonl"
        if self._metrics is None or self._metrics.path != path:
            self._metrics, self._place = JsonlTail(path), (-1, 0)
        if not self._metrics.refresh() and self._place[0] >= 0:
            return False
        generation, done = self._place
        if generation != self._metrics.generation:
            done = 0
            for columns in (self.train, self.val, self.epoch, self.test):
                columns.clear()
        while done < len(self._metrics):
            rows = self._metrics.since(done, done + _AT_ONCE)
            self._add(rows)
            done += len(rows)
        self._place = (self._metrics.generation, done)
        return True

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        kinds = {"train": self.train, "val": self.val, "epoch": self.epoch, "test": self.test}
        for kind, columns in kinds.items():
            mine = [row for row in rows if row.get("kind") == kind]
            columns.add(mine)
            if mine and kind == "train":
                bad = mine[-1].get("nonfinite")
                self.nonfinite = [str(each) for each in bad] if isinstance(bad, list) else []


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
