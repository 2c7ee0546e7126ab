"""The thread that writes down what a node does while its ranks train.

Measuring must never disturb what is measured: nothing here raises, blocks or outlives the process.
What cannot be read or written is said once, and the rest goes on. What does the work is loaded in the
thread: the caller has other things to do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError
from allranks.measure import SAMPLED
from allranks.measure.lines import Lines
from allranks.measure.pace import Pace, read_pace
from allranks.measure.threads import background

if TYPE_CHECKING:
    from allranks.measure.gpus import GpuWatch
    from allranks.measure.node import Node

_A_MOMENT = 0.2
_FAREWELL = 1.0
_SHORTEST = 0.1
"""Seconds: a rate over less says nothing."""

Say = Callable[[str], None]


class Sampler:
    """Samples until it is stopped. Made by `start_sampler` or `sample_here`."""

    def __init__(
        self,
        lines: Lines,
        about: Mapping[str, Any],
        pace: Pace,
        say: Say,
        *,
        make_node: Callable[[], Node] | None,
        below: int | None = None,
    ) -> None:
        """``below``: write only when there are fewer GPUs, and some. ``about``: of the node."""
        self._lines = lines
        self._about = dict(about)
        self._pace = pace
        self._say = say
        self._make_node = make_node
        self._below = below
        self._stopped = threading.Event()
        self._thread = background(self._run, "allranks sampler")
        self._facts: dict[str, Any] = {}
        self._memory: int | None = None

    def start(self) -> bool:
        """Begin; returns at once. False where the system has no thread left for us."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._say(f"the node is not sampled: {error}")
            return False
        return True

    def stop(self) -> None:
        """Write the last sample and end; waits a second for that, never longer."""
        self._stopped.set()
        self._thread.join(_FAREWELL)

    def _run(self) -> None:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ranks go on
            self._say(f"the node is not sampled any more: {error!r}")
        finally:
            self._lines.close()

    def _begin(self) -> None:
        from allranks.measure.gpus import TICK, GpuWatch

        node = self._make_node() if self._make_node else None
        gpus = GpuWatch(self._say, tick=min(self._pace.every or TICK, TICK))
        gpus.start()
        try:
            if self._has_to_write(gpus):
                self._sample(node, gpus)
        finally:
            gpus.stop()

    def _has_to_write(self, gpus: GpuWatch) -> bool:
        if self._below is None:
            return True
        while not gpus.found.is_set():
            if self._stopped.wait(_A_MOMENT):
                return False
        return 0 < len(gpus.gpus) < self._below

    def _sample(self, node: Node | None, gpus: GpuWatch) -> None:
        began = last = time.monotonic()
        ended = False
        while not ended:
            ended = self._stopped.wait(max(self._pace.next(last, began) - time.monotonic(), 0))
            now = time.monotonic()
            if ended and now - last < _SHORTEST and last > began:
                return
            values = {"seconds": round(now - last, 3), **(node.look() if node else {})}
            last = now
            self._write_facts({
                **(node.facts() if node else {}),
                "gpus": [gpu.facts() for gpu in gpus.gpus],
            })  # fmt: skip
            self._write({**values, "gpus": gpus.take()}, ended)

    def _write_facts(self, facts: dict[str, Any]) -> None:
        """Once, and again when they change: a slow driver, ranks that came later."""
        if facts != self._facts:
            line = {"kind": "node", "time": _now(), **self._about, **facts}
            self._facts = facts if self._lines.write(line) else {}

    def _write(self, values: Mapping[str, Any], last: bool) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        if last and self._memory is not None:
            # Ranks have ended by now, or are about to: what they held is what they held before.
            known["memory"] = max(known.get("memory", 0), self._memory)
        self._memory = known.get("memory")
        self._lines.write({"kind": "sample", "time": _now(), **known})


def start_sampler(
    attempt_folder: Path,
    node: int,
    local_rank: int,
    local_size: int,
    root_pid: int,
    say: Say,
    *,
    alone: bool = False,
    env: Mapping[str, str] = os.environ,
) -> Sampler | None:
    """Sample this node beside its ranks; None when that is switched off, and not on Linux.

    The first local rank's agent does it for all. Another's writes a file of its own, of the GPUs
    that its rank alone can see. ``alone``: ranks of the node that are not below ``root_pid`` are
    no concern of it.
    """
    pace = read_pace(env, say) if sys.platform == "linux" else None
    if pace is None:
        return None
    about = {"node": node, "host": env.get("SLURMD_NODENAME") or os.uname().nodename}
    own = f".{local_rank}" if local_rank else ""
    lines = Lines(attempt_folder / "nodes" / f"node-{node:05d}{own}.jsonl", say)

    def make_node() -> Node:
        from allranks.measure.node import Node
        from allranks.measure.tree import Tree, marks

        return Node(Tree(root_pid, [] if alone or local_size == 1 else marks()), env)

    sampler = (
        Sampler(lines, about, pace, say, make_node=None, below=local_size)
        if local_rank
        else Sampler(lines, about, pace, say, make_node=make_node)
    )
    return sampler if sampler.start() else None


@contextmanager
def sample_here(
    find_attempt: Callable[[], Path],
    node: int,
    local_rank: int,
    local_size: int,
    say: Say,
    env: Mapping[str, str] = os.environ,
) -> Iterator[None]:
    """Sample from within a rank, where no agent does: in the first of each node.

    Nothing is written where the attempt's folder cannot be found: not every node may see it.
    """
    folder = sampler = None
    if local_rank == 0 and not env.get(SAMPLED):
        with suppress(AllranksError):
            folder = find_attempt()
    if folder is not None and folder.parent.name == "attempts":
        # Ranks that a Trainer spawned are below it; those of torchrun or srun are beside it.
        alone = bool(env.get("ALLRANKS_SPAWNED"))
        sampler = start_sampler(folder, node, 0, local_size, os.getpid(), say, alone=alone, env=env)
    try:
        yield
    finally:
        if sampler:
            sampler.stop()


def _now() -> float:
    return round(time.time(), 3)
