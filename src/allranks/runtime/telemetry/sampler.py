"""The thread that writes down what a node does while its ranks train.

Measuring must never disturb what is measured: nothing here raises, blocks or outlives the process.
What cannot be read or written is said once, and the rest goes on. What does the work is loaded in the
thread: the caller has other things to do.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import AllranksError
from allranks.runtime.telemetry import SAMPLED
from allranks.runtime.telemetry.background_threads import background
from allranks.runtime.telemetry.jsonl_writer import Lines
from allranks.runtime.telemetry.kernel_files import read_text
from allranks.runtime.telemetry.sampling_interval import Pace, read_pace

if TYPE_CHECKING:
    from allranks.runtime.telemetry.gpu_poller import GpuWatch
    from allranks.runtime.telemetry.node_metrics import Node

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
        beside: Path | None = None,
    ) -> None:
        """``about``: of the node. ``beside``: a file; only GPUs that it does not have are written."""
        self._lines = lines
        self._about = dict(about)
        self._pace = pace
        self._say = say
        self._make_node = make_node
        self._beside = beside
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
            # What is over by then has cost nothing, and a signal at the start finds nobody busy.
            if not self._stopped.wait(_A_MOMENT):
                self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ranks go on
            self._say(f"the node is not sampled any more: {error!r}")
        finally:
            self._lines.close()

    def _begin(self) -> None:
        from allranks.runtime.telemetry.gpu_poller import TICK, GpuWatch

        node = self._make_node() if self._make_node else None
        gpus = GpuWatch(self._say, tick=min(self._pace.every or TICK, TICK))
        gpus.start()
        try:
            if self._has_to_write(gpus):
                self._sample(node, gpus)
        finally:
            gpus.stop()

    def _has_to_write(self, gpus: GpuWatch) -> bool:
        """Whether nobody else does: agents whose ranks share GPUs all see the same ones."""
        if self._beside is None:
            return True
        while not self._stopped.wait(_A_MOMENT):
            written = _gpus_in(self._beside)
            if gpus.found.is_set() and (written is not None or not gpus.gpus):
                return not {gpu.uuid for gpu in gpus.gpus} <= (written or set())
        return False

    def _sample(self, node: Node | None, gpus: GpuWatch) -> None:
        began = last = time.monotonic()
        ended = False
        while not ended:
            ended = self._stopped.wait(max(self._pace.next(last, began) - time.monotonic(), 0))
            now = time.monotonic()
            if ended and now - last < _SHORTEST:
                return
            values = {"seconds": round(now - last, 3), **(node.look() if node else {})}
            last = now
            known = {"gpus": [gpu.facts() for gpu in gpus.gpus]} if gpus.found.is_set() else {}
            self._write_facts({**(node.facts() if node else {}), **known})
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

    The first local rank's agent does it for all. Another's writes a file of its own where it sees
    GPUs that the first does not. ``alone``: ranks of the node that are not below ``root_pid`` are
    no concern of it. It begins a moment later.
    """
    if sys.platform != "linux":
        return None
    # What is wrong with a variable is so for all: one says it.
    pace = read_pace(env, say if node == local_rank == 0 else None)
    if pace is None:
        return None
    about = {"node": node, "host": env.get("SLURMD_NODENAME") or os.uname().nodename}
    folder, name = attempt_folder / "nodes", f"node-{node:05d}"
    first = folder / f"{name}.jsonl"

    def make_node() -> Node:
        from allranks.runtime.telemetry.node_metrics import Node
        from allranks.runtime.telemetry.process_tree import Tree, marks

        return Node(Tree(root_pid, [] if alone or local_size == 1 else marks()), env)

    if local_rank:
        lines = Lines(folder / f"{name}.{local_rank}.jsonl", say)
        sampler = Sampler(lines, about, pace, say, make_node=None, beside=first)
    else:
        sampler = Sampler(Lines(first, say), about, pace, say, make_node=make_node)
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


def _gpus_in(path: Path) -> set[str] | None:
    """The uuids that a node's file has; None while it does not tell."""
    found = None
    for line in read_text(path).splitlines():
        if '"kind": "node"' in line:
            with suppress(ValueError, KeyError):  # torn, or the driver is still being asked
                found = {gpu["uuid"] for gpu in json.loads(line)["gpus"]}
    return found


def _now() -> float:
    return round(time.time(), 3)
