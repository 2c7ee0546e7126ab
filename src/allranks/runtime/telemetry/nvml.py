"""NVIDIA's GPUs by libnvidia-ml, which comes with the driver: no package is needed on a node.

What a driver lacks or a device does not support is None, never an error: a MIG slice knows no
utilization, an old driver no second kind of memory report.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allranks.runtime.telemetry.gpu_sample import Gpu, GpuError, GpuReading

LIBRARY = "libnvidia-ml.so.1"
_OK = 0
_NO_DRIVER = 9
_LOST = {1, 15, 16}
"""Shut down under us, fallen off the bus, in need of a reset."""
_NAME_LENGTH = 96
_THERMOMETER_ON_DIE = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Memory2(ctypes.Structure):
    """Keeps what the driver reserves for itself apart from what is used."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The library, opened: each call gives a value or None."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._memory2 = True
        code = self._call("nvmlInit_v2")
        if code == _NO_DRIVER:
            raise FileNotFoundError("no NVIDIA driver")
        if code != _OK:
            raise GpuError(f"NVML cannot be used: {self._words(code)}")

    def count(self) -> int:
        """Count the GPUs of the node, or those that this process may use: drivers differ."""
        return self._integer("nvmlDeviceGetCount_v2") or 0

    def by_index(self, index: int) -> Any:
        """Return the handle of a GPU; None when it does not answer."""
        return self._handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))

    def by_uuid(self, uuid: str) -> Any:
        """Return the handle of a GPU or a MIG slice."""
        return self._handle("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()))

    def name(self, handle: Any) -> str:
        """Return the name that ``nvidia-smi`` shows."""
        return self._text("nvmlDeviceGetName", handle)

    def uuid(self, handle: Any) -> str:
        """Return GPU-… or MIG-…."""
        return self._text("nvmlDeviceGetUUID", handle)

    def use(self, handle: Any) -> float | None:
        """Return the share of the last sampling period in which a kernel ran."""
        found = self._filled("nvmlDeviceGetUtilizationRates", handle, _Utilization())
        return None if found is None else found.gpu / 100

    def memory(self, handle: Any) -> tuple[int, int] | None:
        """Return the bytes used and the total."""
        if self._memory2:
            wanted = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << 24)
            if found := self._filled("nvmlDeviceGetMemoryInfo_v2", handle, wanted):
                return found.used, found.total
            self._memory2 = False
        found = self._filled("nvmlDeviceGetMemoryInfo", handle, _Memory())
        return None if found is None else (found.used, found.total)

    def power(self, handle: Any) -> float | None:
        """Return the power in watts."""
        return _thousandth(self._integer("nvmlDeviceGetPowerUsage", handle))

    def power_limit(self, handle: Any) -> float | None:
        """Return the power limit in watts."""
        return _thousandth(self._integer("nvmlDeviceGetEnforcedPowerLimit", handle))

    def temperature(self, handle: Any) -> float | None:
        """Return the temperature in degrees Celsius."""
        sensor = ctypes.c_uint(_THERMOMETER_ON_DIE)
        return self._integer("nvmlDeviceGetTemperature", handle, sensor)

    def _call(self, function: str, *arguments: Any) -> int | None:
        """Return NVML's code; None where this driver has no such function."""
        try:
            found = getattr(self._library, function)
        except AttributeError:
            return None
        code = int(found(*arguments))
        if code in _LOST:
            raise GpuError(self._words(code))
        return code

    def _filled(self, function: str, handle: Any, value: Any) -> Any:
        return value if self._call(function, handle, ctypes.byref(value)) == _OK else None

    def _handle(self, function: str, key: Any) -> Any:
        try:
            return self._filled(function, key, ctypes.c_void_p())
        except GpuError:  # lost before we asked
            return None

    def _integer(self, function: str, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        done = self._call(function, *arguments, ctypes.byref(value)) == _OK
        return value.value if done else None

    def _text(self, function: str, handle: Any) -> str:
        buffer = ctypes.create_string_buffer(_NAME_LENGTH)
        done = self._call(function, handle, buffer, ctypes.c_uint(_NAME_LENGTH)) == _OK
        return buffer.value.decode("utf-8", "replace") if done else ""

    def _words(self, code: int | None) -> str:
        try:
            words = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        words.restype = ctypes.c_char_p
        text = words(code)
        return text.decode("utf-8", "replace") if text else f"error {code}"


class NvidiaGpu(Gpu):
    """One GPU or MIG slice."""

    def __init__(self, nvml: Nvml, handle: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        memory = nvml.memory(handle)
        super().__init__(
            number=index,
            name=nvml.name(handle),
            uuid=nvml.uuid(handle),
            memory_total=memory[1] if memory else None,
            power_limit=nvml.power_limit(handle),
        )

    def read(self) -> GpuReading:
        memory = self._nvml.memory(self._handle)
        return GpuReading(
            self._nvml.use(self._handle),
            memory[0] if memory else None,
            self._nvml.power(self._handle),
        )

    def temperature(self) -> float | None:
        return self._nvml.temperature(self._handle)


def find_nvidia(env: Mapping[str, str], load: Callable[[str], Any] = ctypes.CDLL) -> list[Gpu]:
    """Return the job's GPUs on this node; empty without NVIDIA's driver."""
    try:
        nvml = Nvml(load(LIBRARY))
    except OSError:
        return []
    numbers = range(nvml.count())
    # Some drivers count what a cgroup hides and then refuse it; CUDA's numbers leave it out.
    usable = [(number, handle) for number in numbers if (handle := nvml.by_index(number))]
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [NvidiaGpu(nvml, handle, number) for number, handle in usable]
    chosen = choose(wanted, [nvml.uuid(handle) for _, handle in usable])
    whole = [usable[choice] for choice in chosen if isinstance(choice, int)]
    # Slices have no number of their own, and several may be of one GPU: their position is used.
    slices = [(at, nvml.by_uuid(each)) for at, each in enumerate(chosen) if isinstance(each, str)]
    return [NvidiaGpu(nvml, handle, number) for number, handle in whole + slices if handle]


def choose(wanted: str, uuids: Sequence[str]) -> list[int | str]:
    """Return the GPU numbers and MIG names in CUDA_VISIBLE_DEVICES.

    CUDA ends the list at the first invalid entry; so do we.
    """
    found: list[int | str] = []
    for word in map(str.strip, wanted.split(",")):
        choice = _choice(word, uuids)
        if choice is None:
            break
        if choice not in found:
            found.append(choice)
    return found


def _choice(word: str, uuids: Sequence[str]) -> int | str | None:
    if word.isdigit():
        return int(word) if int(word) < len(uuids) else None
    if word.startswith("MIG-"):
        return word
    if not word.startswith("GPU"):
        return None
    matches = [number for number, uuid in enumerate(uuids) if uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
