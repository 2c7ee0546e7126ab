"""CPUs near GPUs, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.runtime.agent.cpu_binding import bind, format_cpus, parse_cpus

ALL = frozenset(range(64))


def nvidia(root: Path, lists: list[str], threads: int = 0) -> Path:
    for at, cpus in enumerate(lists):
        name = f"0000:{at:02X}:00.0"
        info = root / "proc/driver/nvidia/gpus" / name
        info.mkdir(parents=True)
        (info / "information").write_text(f"Model: \t\t H200\nGPU UUID: \t GPU-{at}aaa\n")
        device = root / "sys/bus/pci/devices" / name.lower()
        device.mkdir(parents=True)
        (device / "local_cpulist").write_text(cpus + "\n")
    for cpu in range(threads):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        low = cpu % (threads // 2)
        (place / "thread_siblings_list").write_text(f"{low},{low + threads // 2}\n")
    return root


def told(cpus: list[frozenset[int] | None]) -> list[str | None]:
    return [None if mine is None else format_cpus(mine) for mine in cpus]


def test_each_rank_beside_its_gpu(tmp_path: Path) -> None:
    root = nvidia(tmp_path, ["0-31", "32-63"])
    assert told(bind("auto", 2, ALL, {}, root)) == ["0-31", "32-63"]


def test_ranks_of_one_socket_share_it(tmp_path: Path) -> None:
    root = nvidia(tmp_path, ["0-31", "0-31", "32-63", "32-63"])
    assert told(bind("auto", 4, ALL, {}, root)) == ["0-15", "16-31", "32-47", "48-63"]


def test_both_threads_of_a_core_go_to_one_rank(tmp_path: Path) -> None:
    root = nvidia(tmp_path, ["0-15", "0-15"], threads=16)
    assert told(bind("auto", 2, ALL, {}, root)) == ["0-3,8-11", "4-7,12-15"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["32-63"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1aaa"}, ["32-63"]),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1"}, ["32-63"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, [None]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [None]),
        ({"CUDA_VISIBLE_DEVICES": "7"}, [None]),
    ],
)
def test_visible_gpus(tmp_path: Path, env: dict[str, str], expected: list[str | None]) -> None:
    assert told(bind("auto", 1, ALL, env, nvidia(tmp_path, ["0-31", "32-63"]))) == expected


def test_amd(tmp_path: Path) -> None:
    for at in (0, 1):
        device = tmp_path / f"sys/devices/pci/0000:c{at}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "local_cpulist").write_text(f"{at * 8}-{at * 8 + 7}\n")
        for name in (f"card{at}", f"card{at}-DP-1"):
            card = tmp_path / "sys/class/drm" / name
            card.mkdir(parents=True)
            (card / "device").symlink_to(device)
    assert told(bind("auto", 2, ALL, {}, tmp_path)) == ["0-7", "8-15"]


def test_what_cannot_be_bound_is_left_alone(tmp_path: Path) -> None:
    assert bind("auto", 2, ALL, {}, tmp_path) == [None, None]
    root = nvidia(tmp_path, ["0-3", "0-3"])
    assert bind("none", 2, ALL, {}, root) == [None, None]
    assert bind("auto", 2, frozenset({40}), {}, root) == [None, None]
    assert told(bind("auto", 2, frozenset({1, 2, 9}), {}, root)) == ["1", "2"]


def test_lists_by_hand() -> None:
    assert told(bind("49-51;1,3", 2, ALL, {})) == ["49-51", "1,3"]
    with pytest.raises(UsageError, match="1 CPU lists, but this node has 2 ranks"):
        bind("0-7", 2, ALL, {})
    with pytest.raises(UsageError, match="is not valid"):
        bind("most", 1, ALL, {})


def test_cpu_lists() -> None:
    assert parse_cpus("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert format_cpus(parse_cpus("0-2,8,10-11")) == "0-2,8,10-11"
    assert parse_cpus("") == frozenset()
