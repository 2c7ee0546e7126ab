"""Several loaders at once: a dict of batches in every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from allranks.errors import UsageError
from allranks.train.data.audit import AuditReport
from allranks.train.data.base import DistributedLoader, LoaderOptions, Pair, RankLayout, check_unit

_RESTART = 1_000_003  # added to the epoch for each restart, so that each has another order
STEPS, LOADERS = "steps of several loaders", "the samples of several loaders"
"""Units of positions."""


class DictLoader:
    """``{name: loader}`` as one loader of ``{name: batch}``.

    The longest loader defines the epoch; shorter ones start again. A Trainer makes each loader
    distributed by itself.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        if not loaders:
            raise UsageError("DictLoader needs at least one loader.")
        self.loaders = dict(loaders)

    def __len__(self) -> int:
        return max(len(loader) for loader in self.loaders.values())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return cycle_loaders(
            {n: _again(loader) for n, loader in self.loaders.items()}, self.loaders.keys()
        )


def _again(loader: Any) -> Any:
    def opened(_restart: int) -> Iterator[Any]:
        return iter(loader)

    return opened


def cycle_loaders(openers: Mapping[str, Any], defining: Any) -> Iterator[dict[str, Any]]:
    """Yield one item of each in every step, until each of the ``defining`` ones has ended once."""
    missing = set(defining)
    restarts = dict.fromkeys(openers, 0)
    running = {name: opener(0) for name, opener in openers.items()}
    while True:
        step = {}
        for name in openers:
            item = next(running[name], _END)
            if item is _END:
                missing.discard(name)
                if not missing:
                    return
                restarts[name] += 1
                running[name] = openers[name](restarts[name])
                item = next(running[name], _END)
                if item is _END:
                    raise UsageError(f"Loader '{name}' has no batches, or cannot be read twice.")
            step[name] = item
        yield step


_END = object()


class _Position(NamedTuple):
    """The position of one of the loaders within an epoch."""

    restarts: int
    batches: int


class DistributedDictLoader(DistributedLoader):
    """A distributed loader for each loader; the one that defines the epoch gives the batch weight."""

    def __init__(
        self, loaders: dict[str, DistributedLoader], layout: RankLayout, options: LoaderOptions
    ) -> None:
        super().__init__(layout, options)
        self.loaders = loaders
        self.warnings = [text for loader in loaders.values() for text in loader.warnings]
        self.notes = [
            f"{name}: {note}" for name, loader in loaders.items() for note in loader.notes
        ]
        finite = [name for name, loader in loaders.items() if not loader.endless]
        self._defining = finite or list(loaders)
        self.endless = not finite
        self._lead = max(self._defining, key=lambda name: loaders[name].batches or 0)
        lead = loaders[self._lead]
        self.batch_size, self.global_batch = lead.batch_size, lead.global_batch
        self._resumed: tuple[int, int, dict[str, _Position]] | None = None
        self._counted = bool(finite) and all(loaders[name].batches is not None for name in finite)
        if self._counted:
            self.batches, self.samples = lead.batches, lead.samples

    def total_of(self, index: int) -> int | None:
        return self.loaders[self._lead].total_of(index)

    def epoch(self, number: int, *, skip: int = 0) -> Iterator[Pair]:
        self.batches = self.batches_of(number)
        return self._pairs(number, skip)

    def batches_of(self, number: int) -> int | None:
        if not self._counted:
            return None
        if self._resumed is None or self._resumed[0] != number:
            return self.loaders[self._lead].batches_of(number)
        left = [0]
        for name in self._defining:
            restarts, batches = self._resumed[2][name]
            left += [] if restarts else [(self.loaders[name].batches_of(number) or 0) - batches]
        return self._resumed[1] + max(left)

    def _pairs(self, number: int, skip: int) -> Iterator[Pair]:
        if not self._known:
            openers = {
                name: _opener(loader, number, _Position(0, 0))
                for name, loader in self.loaders.items()
            }
            yield from self._steps(islice(cycle_loaders(openers, self._defining), skip, None))
            return
        positions = {name: self._position_of(name, number, skip) for name in self.loaders}
        left = [name for name in self._defining if not positions[name].restarts]
        openers = {name: _opener(self.loaders[name], number, positions[name]) for name in positions}
        yield from self._steps(cycle_loaders(openers, left) if left else ())

    def _steps(self, steps: Any) -> Iterator[Pair]:
        for step in steps:
            yield {name: pair[0] for name, pair in step.items()}, step[self._lead][1]

    @property
    def _known(self) -> bool:
        """Whether every loader's position follows from the number of steps."""
        return all(loader.batches or loader.endless for loader in self.loaders.values())

    def _position_of(self, name: str, number: int, skip: int) -> _Position:
        """Return the position of a loader after ``skip`` steps: restarts, and batches since the last."""
        base, (restarts, batches) = 0, (0, 0)
        if self._resumed is not None and self._resumed[0] == number:
            base, (restarts, batches) = self._resumed[1], self._resumed[2][name]
        batches += skip - base
        loader = self.loaders[name]
        while (most := loader.batches_of(_restart_epoch(number, restarts))) and batches >= most:
            restarts, batches = restarts + 1, batches - most
        return _Position(restarts, batches)

    def position(self, number: int, batches: int) -> dict[str, Any]:
        if not self._known:
            facts = {"size": self.layout.size, "global_batch": self.global_batch}
            return {"unit": STEPS, "batches": batches, **facts}
        positions = {name: self._position_of(name, number, batches) for name in self.loaders}
        inside = {
            name: {
                "restarts": at_position.restarts,
                **self.loaders[name].position(
                    _restart_epoch(number, at_position.restarts), at_position.batches
                ),
            }
            for name, at_position in positions.items()
        }
        return {"unit": LOADERS, "batches": batches, "loaders": inside}

    def resume(self, number: int, position: Mapping[str, Any]) -> None:
        check_unit(position, LOADERS if self._known else STEPS)
        if not self._known:
            now = {"size": self.layout.size, "global_batch": self.global_batch}
            if any(position[name] != value for name, value in now.items()):
                raise UsageError(
                    "The checkpoint is from the middle of an epoch of several loaders, some of them "
                    "without a length.\nUse the same number of ranks and the same batch size as before, "
                    "or a checkpoint from the end of an epoch."
                )
            return
        inside = position["loaders"]
        if inside.keys() != self.loaders.keys():
            raise UsageError(
                f"The checkpoint has the loaders {', '.join(inside)}, but this training has "
                f"{', '.join(self.loaders)}."
            )
        positions = {name: _Position(at["restarts"], at["batches"]) for name, at in inside.items()}
        self._resumed = (number, position["batches"], positions)
        for name, at in inside.items():
            self.loaders[name].resume(_restart_epoch(number, at["restarts"]), at)

    def check(self) -> AuditReport | None:
        found = {name: loader.check() for name, loader in self.loaders.items()}
        reports = {name: report for name, report in found.items() if report is not None}
        if not reports:
            return None
        text = " ".join(f"{name}: {report.message}" for name, report in reports.items())
        return AuditReport(all(report.ok for report in reports.values()), text)

    def close(self) -> None:
        for loader in self.loaders.values():
            loader.close()


def _opener(loader: DistributedLoader, number: int, at_position: _Position) -> Any:
    """Return a function that opens the loader at its position, and from its beginning on each restart."""

    def opened(restart: int) -> Iterator[Pair]:
        epoch = _restart_epoch(number, at_position.restarts + restart)
        return loader.epoch(epoch, skip=0 if restart else at_position.batches)

    return opened


def _restart_epoch(number: int, restarts: int) -> int:
    return number + restarts * _RESTART
