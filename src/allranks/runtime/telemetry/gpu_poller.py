"""The node's GPUs, read every second by a thread of its own: a driver that hangs holds up nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from allranks.runtime.telemetry.background_threads import background
from allranks.runtime.telemetry.gpu_sample import Gpu, GpuError, Reading

TICK = 1.0
_STALE = 5.0
"""Seconds after which a reading says nothing of now."""
_TICKS_PER_TEMPERATURE = 5
_HANGS = 60.0
"""Seconds without an answer after which it is said. Waking a GPU may take some."""

Say = Callable[[str], None]


def find_gpus(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The job's GPUs on this node."""
    from allranks.runtime.telemetry.amd_gpus import find_amd
    from allranks.runtime.telemetry.nvml import find_nvidia

    return find_nvidia(env) or find_amd(env)


class GpuWatch:
    """Reads the GPUs until it is stopped; `take` gives the means since the last `take`."""

    def __init__(
        self, say: Say, find: Callable[[], list[Gpu]] = find_gpus, tick: float = TICK
    ) -> None:
        self.found = threading.Event()
        """Set once it is known which GPUs there are."""
        self.gpus: list[Gpu] = []
        self._say = say
        self._find = find
        self._tick_seconds = tick
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._readings: dict[int, list[Reading]] = {}
        self._latest: dict[int, Reading] = {}
        self._temperatures: dict[int, float | None] = {}
        self._alive = time.monotonic()
        self._hung = False
        self._thread = background(self._run, "allranks gpus")

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Does not wait: the thread may be held in the driver."""
        self._stopped.set()

    def take(self) -> list[dict[str, Any]]:
        """One entry for each GPU that answers; between two readings the latest stands."""
        with self._lock:
            readings, self._readings = self._readings, {}
            silent = time.monotonic() - self._alive
            latest = self._latest.copy() if silent < _STALE else {}
        self._note_silence(silent)
        known = {at: readings.get(at) or [latest[at]] for at in readings.keys() | latest.keys()}
        return [
            _means(gpu.number, known[at], self._temperatures.get(at))
            for at, gpu in enumerate(self.gpus)
            if at in known
        ]

    def _note_silence(self, seconds: float) -> None:
        if seconds > _HANGS and not self._hung and self._thread.is_alive():
            self._hung = True
            self._say("the GPUs' driver does not answer: no samples of them")

    def _run(self) -> None:
        try:
            self.gpus = self._find()
            self.found.set()
            self._watch()
        except Exception as error:  # noqa: BLE001 - whatever it is, the ranks go on
            self._say(f"no samples of GPUs: {error}")
        finally:
            self.found.set()

    def _watch(self) -> None:
        lost: set[int] = set()
        ticks = 0
        while len(lost) < len(self.gpus):
            for at, gpu in enumerate(self.gpus):
                if at not in lost and not self._tick(at, gpu, ticks):
                    lost.add(at)
            self._alive = time.monotonic()
            ticks += 1
            if self._stopped.wait(self._tick_seconds):
                return

    def _tick(self, at: int, gpu: Gpu, ticks: int) -> bool:
        """Read one; False when it is lost."""
        try:
            reading = gpu.read()
            if ticks % _TICKS_PER_TEMPERATURE == 0:
                self._temperatures[at] = gpu.temperature()
        except GpuError as error:
            with self._lock:
                self._latest.pop(at, None)
            self._say(f"GPU {gpu.number} ({gpu.name}): {error}; no more samples of it")
            return False
        with self._lock:
            self._readings.setdefault(at, []).append(reading)
            self._latest[at] = reading
        return True


def _means(number: int, readings: list[Reading], temperature: float | None) -> dict[str, Any]:
    memories = [reading.memory for reading in readings if reading.memory is not None]
    values = {
        "gpu": number,
        "use": _mean([reading.use for reading in readings], 4),
        "memory": max(memories, default=None),
        "power": _mean([reading.power for reading in readings], 1),
        "temperature": temperature,
    }
    return {name: value for name, value in values.items() if value is not None}


def _mean(values: list[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), digits) if known else None
