"""The thread that records what a node does while its ranks train.

Sampling must never disturb training: nothing here raises, blocks or outlives the process. A failure to
read or write is reported once, and sampling continues with the rest. The modules that do the work are
imported in the thread.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from allranks.core.background_thread import background_thread
from allranks.errors import AllranksError
from allranks.runtime.telemetry import SAMPLED, is_switched_off, read_text
from allranks.runtime.telemetry.jsonl_writer import JsonLinesWriter

if TYPE_CHECKING:
    from allranks.runtime.telemetry.gpu_poller import GpuPoller
    from allranks.runtime.telemetry.node_metrics import NodeMetrics

_START_DELAY = 0.2
_STOP_SECONDS = 1.0
SHORTEST_SECONDS = 0.1
"""Seconds: a rate over less time means nothing."""

VARIABLE = "ALLRANKS_SAMPLE"
FIRST_SECONDS = 1.0
_OFTEN, _OFTEN_UNTIL = 5.0, 600.0
_LATER = 15.0
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.2, 86400.0

Say = Callable[[str], None]


class SamplingInterval(NamedTuple):
    """How often to sample: soon after the start, then often, then as a long run needs it."""

    every: float | None = None
    """Seconds that the user asked for."""

    def next(self, last: float, began: float) -> float:
        """Return when the next sample is due after one at ``last``; sampling began at ``began``."""
        if last == began:
            return began + min(FIRST_SECONDS, self.every or FIRST_SECONDS)
        if self.every is not None:
            return last + self.every
        return last + (_OFTEN if last - began < _OFTEN_UNTIL else _LATER)


def read_interval(env: Mapping[str, str], say: Say | None) -> SamplingInterval | None:
    """Read ALLRANKS_SAMPLE: ``off``, or seconds (``5`` or ``5s``); None when it is off."""
    text = env.get(VARIABLE, "").strip().lower()
    if is_switched_off(text):
        return None
    if not text:
        return SamplingInterval()
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_INTERVAL:
        if say:
            say(
                f"{VARIABLE}={text} is neither off nor a number of seconds up to a day: "
                "nodes are sampled as usual"
            )
        return SamplingInterval()
    return SamplingInterval(max(seconds, _SHORTEST_INTERVAL))


class Sampler:
    """Samples until it is stopped. Made by `start_sampler` or `sample_here`."""

    def __init__(
        self,
        lines: JsonLinesWriter,
        about: Mapping[str, Any],
        interval: SamplingInterval,
        say: Say,
        *,
        make_node: Callable[[], NodeMetrics] | None,
        beside: Path | None = None,
    ) -> None:
        """``about``: facts of the node. ``beside``: another agent's file; its GPUs are not written again."""
        self._lines = lines
        self._about = dict(about)
        self._interval = interval
        self._say = say
        self._make_node = make_node
        self._beside = beside
        self._stopped = threading.Event()
        self._thread = background_thread(self._run, "allranks sampler")
        self._facts: dict[str, Any] = {}
        self._memory: int | None = None

    def start(self) -> bool:
        """Start the thread; False where the system allows no more threads."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._say(f"the node is not sampled: {error}")
            return False
        return True

    def stop(self) -> None:
        """Write the last sample and end, within a second."""
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            # A process that ends at once costs nothing, and a signal at the start is not delayed.
            if not self._stopped.wait(_START_DELAY):
                self._begin()
        except Exception as error:  # noqa: BLE001 - training must continue
            self._say(f"the node is not sampled any more: {error!r}")
        finally:
            self._lines.close()

    def _begin(self) -> None:
        from allranks.runtime.telemetry.gpu_poller import TICK, GpuPoller

        node = self._make_node() if self._make_node else None
        gpus = GpuPoller(self._say, tick=min(self._interval.every or TICK, TICK))
        gpus.start()
        try:
            if self._has_to_write(gpus):
                self._sample(node, gpus)
        finally:
            gpus.stop()

    def _has_to_write(self, gpus: GpuPoller) -> bool:
        """Whether no other agent writes these GPUs: agents whose ranks share GPUs see the same ones."""
        if self._beside is None:
            return True
        while not self._stopped.wait(_START_DELAY):
            written = _gpus_in(self._beside)
            if gpus.found.is_set() and (written is not None or not gpus.gpus):
                return not {gpu.uuid for gpu in gpus.gpus} <= (written or set())
        return False

    def _sample(self, node: NodeMetrics | None, gpus: GpuPoller) -> None:
        began = last = time.monotonic()
        ended = False
        while not ended:
            ended = self._stopped.wait(max(self._interval.next(last, began) - time.monotonic(), 0))
            now = time.monotonic()
            if ended and now - last < SHORTEST_SECONDS:
                return
            values = {"seconds": round(now - last, 3), **(node.sample() if node else {})}
            last = now
            known = {"gpus": [gpu.facts() for gpu in gpus.gpus]} if gpus.found.is_set() else {}
            self._write_facts({**(node.facts() if node else {}), **known})
            self._write({**values, "gpus": gpus.take()}, ended)

    def _write_facts(self, facts: dict[str, Any]) -> None:
        """Write the facts once, and again when they change: a slow driver, ranks that started later."""
        if facts != self._facts:
            line = {"kind": "node", "time": _now(), **self._about, **facts}
            self._facts = facts if self._lines.write(line) else {}

    def _write(self, values: Mapping[str, Any], last: bool) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        if last and self._memory is not None:
            # The ranks have ended or are about to: the memory of the sample before counts.
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

    The first local rank's agent does it for all. Another one writes a file of its own where it sees
    GPUs that the first does not. ``alone``: ignore ranks of the node that are not below ``root_pid``.
    Sampling starts a moment later.
    """
    if sys.platform != "linux":
        return None
    # A wrong value is the same for all: one rank reports it.
    interval = read_interval(env, say if node == local_rank == 0 else None)
    if interval is None:
        return None
    about = {"node": node, "host": env.get("SLURMD_NODENAME") or os.uname().nodename}
    folder, name = attempt_folder / "nodes", f"node-{node:05d}"
    first = folder / f"{name}.jsonl"

    def make_node() -> NodeMetrics:
        from allranks.runtime.telemetry.node_metrics import NodeMetrics
        from allranks.runtime.telemetry.process_tree import ProcessTree, launch_variables

        return NodeMetrics(
            ProcessTree(root_pid, [] if alone or local_size == 1 else launch_variables()), env
        )

    if local_rank:
        lines = JsonLinesWriter(folder / f"{name}.{local_rank}.jsonl", say)
        sampler = Sampler(lines, about, interval, say, make_node=None, beside=first)
    else:
        sampler = Sampler(JsonLinesWriter(first, say), about, interval, say, make_node=make_node)
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
    """Return the GPU uuids in a node's file; None before they are written."""
    found = None
    for line in read_text(path).splitlines():
        if '"kind": "node"' in line:
            with suppress(ValueError, KeyError):  # torn, or the driver is still being asked
                found = {gpu["uuid"] for gpu in json.loads(line)["gpus"]}
    return found


def _now() -> float:
    return round(time.time(), 3)
