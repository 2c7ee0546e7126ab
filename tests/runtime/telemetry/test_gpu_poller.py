"""GPUs: NVIDIA's by a library of the same shape as the driver's, AMD's by files, and none."""

from __future__ import annotations

import ctypes
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.runtime.telemetry.amd_gpus import find_amd
from allranks.runtime.telemetry.gpu_poller import GpuPoller, find_gpus
from allranks.runtime.telemetry.gpu_sample import Gpu, GpuError, GpuReading
from allranks.runtime.telemetry.nvml import choose, find_nvidia
from command_rig import until


@pytest.fixture
def load(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], ctypes.CDLL]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path))
    # getenv of C sees what Python puts into the environment of the process.
    return lambda name: ctypes.CDLL(str(library))


def test_what_the_driver_tells_and_what_it_does_not(load: Any) -> None:
    first, second = find_nvidia({}, load)
    assert first.facts() == {
        "gpu": 0,
        "name": "NVIDIA H200",
        "uuid": "GPU-aaaa-1111",
        "memory_total": 1000,
        "power_limit": 700.0,
    }
    assert first.read() == GpuReading(0.97, 600, 650.5)
    assert first.temperature() == 61
    assert second.read() == GpuReading(None, 600, None)
    assert second.power_limit is None


def test_which_gpus_are_the_jobs(load: Any) -> None:
    def numbers(visible: str) -> list[int]:
        return [gpu.number for gpu in find_nvidia({"CUDA_VISIBLE_DEVICES": visible}, load)]

    assert numbers("1") == [1]
    assert numbers("1,0") == [1, 0]
    assert numbers("") == numbers("-1") == numbers("NoDevFiles") == []
    assert numbers("GPU-aabb") == [1]
    assert numbers("GPU-aa") == []  # could be either
    assert numbers("0,9,1") == [0]  # CUDA ends the list there


def test_slices_of_one_gpu_have_a_number_each(load: Any) -> None:
    found = find_nvidia({"CUDA_VISIBLE_DEVICES": "MIG-cccc,MIG-gone,MIG-dddd"}, load)
    assert [(gpu.number, gpu.uuid) for gpu in found] == [(0, "MIG-cccc"), (2, "MIG-dddd")]
    assert found[0].read() == GpuReading(None, 600, None)


def test_numbers_are_those_of_what_a_cgroup_leaves(load: Any, tmp_path: Path) -> None:
    (tmp_path / "hidden").touch()
    (all_that_is_left,) = find_nvidia({}, load)
    (chosen,) = find_nvidia({"CUDA_VISIBLE_DEVICES": "0"}, load)
    assert all_that_is_left.uuid == chosen.uuid == "GPU-aabb-2222"
    assert chosen.number == 1
    assert find_nvidia({"CUDA_VISIBLE_DEVICES": "1"}, load) == []


def test_choices() -> None:
    uuids = ["GPU-12", "GPU-34"]
    assert choose("0, 0,1", uuids) == [0, 1]
    assert choose("GPU-34,0", uuids) == [1, 0]
    assert choose("MIG-1,junk,0", uuids) == ["MIG-1"]


def test_a_driver_that_is_not_there_or_does_not_fit(load: Any, tmp_path: Path) -> None:
    (tmp_path / "no-driver").touch()
    assert find_nvidia({}, load) == []
    (tmp_path / "no-driver").unlink()
    (tmp_path / "mismatch").touch()
    with pytest.raises(GpuError, match="Driver/library version mismatch"):
        find_nvidia({}, load)


def test_no_library_on_this_machine() -> None:
    def absent(name: str) -> Any:
        return ctypes.CDLL("libnvidia-ml-that-nobody-has.so.1")

    assert find_nvidia({}, absent) == []


def _watch(find: Callable[[], list[Gpu]], tick: float = 0.02) -> tuple[GpuPoller, list[str]]:
    said: list[str] = []
    return GpuPoller(said.append, find, tick), said


def test_a_gpu_that_falls_off_the_bus_is_said_once_and_the_other_goes_on(
    load: Any, tmp_path: Path
) -> None:
    watch, said = _watch(lambda: find_nvidia({}, load))
    watch.start()
    until(lambda: len(watch.take()) == 2)
    (tmp_path / "lost").touch()
    until(lambda: bool(said))
    watch.take()
    until(lambda: bool(found := watch.take()) and [gpu["gpu"] for gpu in found] == [1])
    watch.stop()
    assert said == ["GPU 0 (NVIDIA H200): GPU is lost; no more samples of it"]


def test_a_driver_that_hangs_holds_up_nobody(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.runtime.telemetry.gpu_poller.HANG_SECONDS", 0.05)
    (tmp_path / "hang").touch()
    watch, said = _watch(lambda: find_nvidia({}, load))
    watch.start()
    until(lambda: watch.take() == [] and bool(said))
    watch.stop()
    watch.take()
    assert said == ["the GPUs' driver does not answer: no samples of them"]
    (tmp_path / "hang").unlink()
    until(lambda: not any(thread.name == "allranks gpus" for thread in threading.enumerate()))


class Scripted(Gpu):
    """One whose readings are known."""

    def __init__(self, readings: list[GpuReading]) -> None:
        super().__init__(number=3, name="x", uuid="u", memory_total=1, power_limit=None)
        self._readings = iter(readings)

    def read(self) -> GpuReading:
        reading = next(self._readings, None)
        if reading is None:
            raise GpuError("no more")
        return reading

    def temperature(self) -> float | None:
        return 50.0


def test_use_and_power_are_means_and_memory_is_the_most() -> None:
    readings = [
        GpuReading(0.2, 100, 300.0),
        GpuReading(1.0, 900, 500.0),
        GpuReading(None, 400, None),
    ]
    watch, said = _watch(lambda: [Scripted(readings)], tick=0.0)
    watch.start()
    until(lambda: bool(said))
    assert watch.take() == [{"gpu": 3, "use": 0.6, "memory": 900, "power": 400.0, "temperature": 50.0}]  # fmt: skip
    assert watch.take() == []


def test_between_two_readings_the_latest_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, _ = _watch(lambda: [Scripted([GpuReading(0.5, 100, None)])], tick=3600)
    watch.start()
    until(lambda: bool(watch.take()))
    expected = [{"gpu": 3, "use": 0.5, "memory": 100, "temperature": 50.0}]
    assert watch.take() == expected
    monkeypatch.setattr(
        "allranks.runtime.telemetry.gpu_poller._STALE", 0.0
    )  # the driver hangs since then
    assert watch.take() == []
    watch.stop()


def test_a_search_that_fails_is_said(tmp_path: Path) -> None:
    def find() -> list[Gpu]:
        raise GpuError("NVML cannot be used: Driver/library version mismatch")

    watch, said = _watch(find)
    watch.start()
    assert watch.found.wait(10)
    assert said == ["no samples of GPUs: NVML cannot be used: Driver/library version mismatch"]


def _card(root: Path, number: int, **files: object) -> Path:
    folder = root / f"card{number}" / "device"
    hwmon = folder / "hwmon" / "hwmon4"
    hwmon.mkdir(parents=True)
    for name, value in files.items():
        place = hwmon if name.startswith(("power1", "temp1")) else folder
        (place / name).write_text(f"{value}\n")
    return folder


@pytest.fixture
def drm(tmp_path: Path) -> Path:
    root = tmp_path / "drm"
    card = {"vendor": "0x1002", "mem_info_vram_total": 64, "mem_info_vram_used": 48}
    _card(root, 0, vendor="0x1a03")  # the console of the server
    (root / "card1-DP-1").mkdir()
    _card(
        root, 1, **card, device="0x74a1", unique_id="ab12", gpu_busy_percent=88,
        power1_average=550_000_000, power1_cap=750_000_000, temp1_input=61000,
    )  # fmt: skip
    _card(root, 10, **card, device="0x7408", product_name="", power1_input=90_000_000)
    _card(root, 2, **card, device="0x9999", product_name="AMD Instinct MI210")
    return root


def test_amd(drm: Path) -> None:
    found = find_amd({}, drm)
    names = ["AMD Instinct MI300X", "AMD Instinct MI210", "AMD Instinct MI250X"]
    assert [gpu.name for gpu in found] == names
    assert [gpu.number for gpu in found] == [0, 1, 2]
    first, _, last = found
    assert first.facts() == {
        "gpu": 0,
        "name": "AMD Instinct MI300X",
        "uuid": "GPU-ab12",
        "memory_total": 64,
        "power_limit": 750.0,
    }
    assert (first.read(), first.temperature()) == (GpuReading(0.88, 48, 550.0), 61.0)
    assert (last.read(), last.temperature()) == (GpuReading(None, 48, 90.0), None)
    shutil.rmtree(drm / "card1")
    with pytest.raises(GpuError):
        first.read()


def test_which_of_amds_are_the_jobs(drm: Path) -> None:
    def numbers(**env: str) -> list[int]:
        return [gpu.number for gpu in find_amd(env, drm)]

    assert numbers(ROCR_VISIBLE_DEVICES="2,0") == [2, 0]
    assert numbers(ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="1") == [2]
    assert numbers(HIP_VISIBLE_DEVICES="") == []
    assert numbers(CUDA_VISIBLE_DEVICES="1") == [1]
    assert numbers(CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == [0]
    assert numbers(ROCR_VISIBLE_DEVICES="GPU-ab12") == [0]


def test_what_a_container_hides_of_amds_is_left_out(drm: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dri"
    for card, node in ((1, "renderD128"), (2, "renderD129"), (10, "renderD130")):
        (drm / f"card{card}" / "device" / "drm" / node).mkdir(parents=True)
    assert len(find_amd({}, drm, dev)) == 3  # nothing can be known
    dev.mkdir()
    (dev / "renderD130").touch()
    assert [gpu.number for gpu in find_amd({}, drm, dev)] == [2]
    assert [gpu.number for gpu in find_amd({"ROCR_VISIBLE_DEVICES": "0"}, drm, dev)] == [2]


def test_this_machine_without_gpus_that_are_visible() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    assert find_gpus(hidden) == []
