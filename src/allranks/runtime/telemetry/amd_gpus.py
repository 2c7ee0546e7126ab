"""AMD's GPUs by the files of the amdgpu driver below ``/sys/class/drm``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.runtime.telemetry import read_number, read_text
from allranks.runtime.telemetry.gpu_sample import Gpu, GpuError, GpuReading

ROOT = Path("/sys/class/drm")
DEV = Path("/dev/dri")
_CARD = re.compile(r"^card(\d+)$")
_VENDOR = "0x1002"
_NAMES = {
    "0x738c": "AMD Instinct MI100",
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
}
"""By device id, for drivers that do not report the product name."""


class AmdGpu(Gpu):
    """One card; of an MI250X one of its two dies, which the driver shows as a card each."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        sensors = sorted(folder.glob("hwmon/hwmon*"))
        self._sensors = sensors[0] if sensors else folder / "hwmon"
        identity = read_text(folder / "unique_id")
        super().__init__(
            number=number,
            name=_name(folder),
            uuid=f"GPU-{identity}" if identity else f"{folder.resolve().name}",
            memory_total=read_number(folder / "mem_info_vram_total"),
            power_limit=_millionth(read_number(self._sensors / "power1_cap")),
        )

    def read(self) -> GpuReading:
        if not self._folder.exists():
            raise GpuError("it has disappeared from /sys")
        use = read_number(self._folder / "gpu_busy_percent")
        power = read_number(self._sensors / "power1_average")
        if power is None:
            power = read_number(self._sensors / "power1_input")
        return GpuReading(
            None if use is None else use / 100,
            read_number(self._folder / "mem_info_vram_used"),
            _millionth(power),
        )

    def temperature(self) -> float | None:
        value = read_number(self._sensors / "temp1_input")
        return None if value is None else value / 1000


def find_amd(env: Mapping[str, str], root: Path = ROOT, dev: Path = DEV) -> list[Gpu]:
    """Return the job's GPUs on this node; empty without the driver."""
    try:
        names = [match for path in root.iterdir() if (match := _CARD.match(path.name))]
    except OSError:
        return []
    folders = [root / name[0] / "device" for name in sorted(names, key=lambda name: int(name[1]))]
    cards = enumerate(folder for folder in folders if _is_gpu(folder))
    gpus: list[Gpu] = [AmdGpu(folder, n) for n, folder in cards if _may_open(folder, dev)]
    # ROCR hides devices from everything above it, so HIP's numbers count what it leaves.
    above = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in env else "CUDA_VISIBLE_DEVICES"
    for variable in ("ROCR_VISIBLE_DEVICES", above):
        if variable in env:
            gpus = _chosen(env[variable], gpus)
    return gpus


def _chosen(wanted: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    found: list[Gpu] = []
    for word in map(str.strip, wanted.split(",")):
        matches = [gpu for n, gpu in enumerate(gpus) if word in (str(n), gpu.uuid)]
        if not matches:
            break
        if matches[0] not in found:
            found.append(matches[0])
    return found


def _is_gpu(folder: Path) -> bool:
    return read_text(folder / "vendor") == _VENDOR and (folder / "mem_info_vram_total").exists()


def _may_open(folder: Path, dev: Path) -> bool:
    """Whether this process may use it: ``/sys`` shows what a cgroup or a container hides as well."""
    nodes = [dev / path.name for path in folder.glob("drm/renderD*")]
    if not nodes or not dev.is_dir():
        return True
    try:
        os.close(os.open(nodes[0], os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _name(folder: Path) -> str:
    device = read_text(folder / "device")
    return read_text(folder / "product_name") or _NAMES.get(device, f"AMD GPU {device}".strip())


def _millionth(value: int | None) -> float | None:
    return None if value is None else value / 1e6
