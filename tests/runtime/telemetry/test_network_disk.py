"""Each byte of the network once, and disks though processes end."""

from __future__ import annotations

from pathlib import Path

from proc_rig import Proc

from allranks.runtime.telemetry.network_disk import NetworkDiskUsage, interfaces, ports
from allranks.runtime.telemetry.process_tree import ProcessTree

HEAD = "Inter-| Receive | Transmit\n face |bytes packets |bytes packets\n"


def _net(proc: Proc, **counts: tuple[int, int]) -> None:
    (proc.path / "net").mkdir(exist_ok=True)
    lines = [f"{name:>6}:{a} 1 0 0 0 0 0 0 {b} 1 0 0 0 0 0 0\n" for name, (a, b) in counts.items()]
    (proc.path / "net" / "dev").write_text(HEAD + "".join(lines))


def _interface(sys: Path, name: str, *, device: bool = False, master: bool = False, kind: int = 1):
    folder = sys / "class" / "net" / name
    folder.mkdir(parents=True)
    (folder / "type").write_text(f"{kind}\n")
    if device:
        (folder / "device").mkdir()
    if master:
        (folder / "master").mkdir()


def _port(sys: Path, device: str, folder: str, **counts: int) -> None:
    path = sys / "class/infiniband" / device / "ports/1" / folder
    path.mkdir(parents=True, exist_ok=True)
    for name, value in counts.items():
        (path / name).write_text(f"{value}\n")


def test_a_bond_and_a_bridge_hand_on_what_devices_carry(proc: Proc, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    _net(proc, lo=(9, 9), eth0=(10, 20), eth1=(30, 40), bond0=(40, 60), veth3=(5, 5))
    for name, device in (("eth0", True), ("eth1", True), ("bond0", False), ("veth3", False)):
        _interface(sys, name, device=device, master=name.startswith("eth"))
    assert interfaces(proc.path, sys) == {"eth0": (10, 20), "eth1": (30, 40)}


def test_a_container_has_no_device(proc: Proc, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    _net(proc, lo=(9, 9), eth0=(10, 20), br0=(1, 1), port=(7, 7))
    for name in ("eth0", "br0", "port"):
        _interface(sys, name, master=name == "port")
    assert interfaces(proc.path, sys) == {"eth0": (10, 20), "br0": (1, 1)}


def test_infiniband_counts_words_and_ip_over_it_is_not_counted_twice(
    proc: Proc, tmp_path: Path
) -> None:
    sys = tmp_path / "sys"
    _net(proc, eth0=(10, 20), ib0=(1000, 1000))
    _interface(sys, "eth0", device=True)
    _interface(sys, "ib0", device=True, kind=32)
    assert "ib0" in interfaces(proc.path, sys)
    _port(sys, "mlx5_0", "counters", port_rcv_data=1000, port_xmit_data=500)
    _port(sys, "efa_0", "hw_counters", rx_bytes=7, tx_bytes=8)
    assert interfaces(proc.path, sys) == {"eth0": (10, 20)}
    assert ports(sys) == {"mlx5_0/1": (4000, 2000), "efa_0/1": (7, 8)}


def _io(proc: Proc, pid: int, read: int, written: int) -> None:
    text = f"rchar: 5\nwchar: 5\nread_bytes: {read}\nwrite_bytes: {written}\ncancelled: 0\n"
    (proc.path / str(pid) / "io").write_text(text)


def test_rates_and_counters_that_begin_anew(proc: Proc, tmp_path: Path) -> None:
    sys = tmp_path / "sys"
    for name in ("eth0", "eth1"):
        _interface(sys, name, device=True)
    _net(proc, eth0=(1000, 1000), eth1=(5000, 5000))
    proc.process(10, 1)
    proc.process(11, 10)
    _io(proc, 10, 100, 100)
    _io(proc, 11, 4000, 0)
    traffic, tree = NetworkDiskUsage(proc.path, sys), ProcessTree(10, proc=str(proc.path))
    assert traffic.sample(tree.sample(), 0) == {}
    _net(proc, eth0=(1600, 1200), eth1=(0, 5100))
    _io(proc, 11, 5000, 10)
    found = traffic.sample(tree.sample(), 2.0)
    assert found == {"net_in": 300, "net_out": 150, "disk_read": 500, "disk_write": 5}
    # 11 ended after 200 more bytes, and 10 has inherited all that it read.
    proc.end(11)
    _io(proc, 10, 100 + 5200, 110)
    found = traffic.sample(tree.sample(), 2.0)
    assert (found["disk_read"], found["disk_write"]) == (100, 0)
    proc.process(10, 1)
    _io(proc, 10, 0, 0)
    found = traffic.sample(tree.sample(), 2.0)
    assert (found["disk_read"], found["disk_write"], found["net_in"]) == (0, 0, 0)


def test_a_machine_that_tells_nothing(proc: Proc, tmp_path: Path) -> None:
    assert NetworkDiskUsage(proc.path, tmp_path).sample({}, 1.0) == {}


def test_this_machine() -> None:
    traffic = NetworkDiskUsage()
    tree = ProcessTree(1)
    traffic.sample(tree.sample(), 0)
    found = traffic.sample(tree.sample(), 1.0)
    assert all(value >= 0 for value in found.values())
    assert "lo" not in interfaces(Path("/proc"), Path("/sys"))
