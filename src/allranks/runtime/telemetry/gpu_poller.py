"""Polls the node's GPUs every second in its own thread: a driver that hangs blocks nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from allranks.core.background_thread import background_thread
from allranks.runtime.telemetry.gpu_sample import Gpu, GpuError, GpuReading

TICK = 1.0
_STALE = 5.0
"""Seconds after which a reading is outdated."""
_TICKS_PER_TEMPERATURE = 5
HANG_SECONDS = 60.0
"""Seconds without an answer after which a message is printed. Waking a GPU may take some."""

Say = Callable[[str], None]


def find_gpus(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the job's GPUs on this node."""
    from allranks.runtime.telemetry.amd_gpus import find_amd
    from allranks.runtime.telemetry.nvml import find_nvidia

    return find_nvidia(env) or find_amd(env)


class GpuPoller:
    """Polls the GPUs until it is stopped; `take` returns the means since the last `take`."""

    def __init__(
        self, say: Say, find: Callable[[], list[Gpu]] = find_gpus, tick: float = TICK
    ) -> None:
        self.found = threading.Event()
        """Set once the GPUs have been found."""
        self.gpus: list[Gpu] = []
        self._say = say
        self._find = find
        self._tick_seconds = tick
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._readings: dict[int, list[GpuReading]] = {}
        self._latest: dict[int, GpuReading] = {}
        self._temperatures: dict[int, float | None] = {}
        self._alive = time.monotonic()
        self._hung = False
        self._thread = background_thread(self._run, "allranks gpus")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Does not wait: the thread may be blocked in the driver."""
        self._stopped.set()

    def take(self) -> list[dict[str, Any]]:
        """Return one entry for each GPU that answers; without a new reading, the latest one."""
        with self._lock:
            readings, self._readings = self._readings, {}
            silent = time.monotonic() - self._alive
            latest = self._latest.copy() if silent < _STALE else {}
        self._report_hang(silent)
        known = {at: readings.get(at) or [latest[at]] for at in readings.keys() | latest.keys()}
        return [
            _means(gpu.number, known[at], self._temperatures.get(at))
            for at, gpu in enumerate(self.gpus)
            if at in known
        ]

    def _report_hang(self, seconds: float) -> None:
        if seconds > HANG_SECONDS and not self._hung and self._thread.is_alive():
            self._hung = True
            self._say("the GPUs' driver does not answer: no samples of them")

    def _run(self) -> None:
        try:
            self.gpus = self._find()
            self.found.set()
            self._watch()
        except Exception as error:  # noqa: BLE001 - training must continue
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
        """Read one GPU; False when it is lost."""
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


def _means(number: int, readings: list[GpuReading], temperature: float | None) -> dict[str, Any]:
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
