"""What the ranks may use and what they do, by cgroups of both versions and by ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from proc_rig import Proc

from allranks.runtime.telemetry.cgroups import Cgroups
from allranks.runtime.telemetry.node_metrics import HostUsage
from allranks.runtime.telemetry.process_tree import TICKS, ProcessTree

GB = 1 << 30


def _write(root: Path, files: dict[str, object]) -> None:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def _in(proc: Proc, text: str) -> None:
    (proc.process(10) / "cgroup").write_text(text)


@pytest.fixture
def version_2(tmp_path: Path, proc: Proc) -> Cgroups:
    step = "system.slice/slurmstepd.scope/job_7/step_0"
    _in(proc, f"0::/{step}/user/task_0\n")
    root = tmp_path / "cgroup"
    (root / step / "user/task_0").mkdir(parents=True)
    _write(root, {
        "cgroup.controllers": "cpu memory",
        f"{step}/../memory.max": 64 * GB,
        f"{step}/../cpu.max": "450000 100000",
        f"{step}/memory.max": "max",
        f"{step}/cpu.max": "max 100000",
        f"{step}/memory.current": 10 * GB,
        f"{step}/memory.stat": f"anon 1\ninactive_file {2 * GB}\nactive_file {GB}\nfile 9",
        f"{step}/cpu.stat": "usage_usec 12500000\nuser_usec 1",
    })  # fmt: skip
    return Cgroups(10, proc.path, root)


@pytest.fixture
def version_1(tmp_path: Path, proc: Proc) -> Cgroups:
    step = "slurm/uid_1000/job_7/step_batch"
    _in(proc, f"4:memory:/{step}/task_0\n3:cpu,cpuacct:/{step}\n1:name=systemd:/\n0::/\n")
    root = tmp_path / "cgroup"
    (root / "memory" / step / "task_0").mkdir(parents=True)
    _write(root, {
        f"memory/{step}/task_0/memory.limit_in_bytes": 9223372036854771712,
        f"memory/{step}/memory.limit_in_bytes": 64 * GB,
        f"memory/{step}/memory.usage_in_bytes": 10 * GB,
        f"memory/{step}/memory.stat": f"total_inactive_file {2 * GB}\ntotal_active_file {GB}",
        f"cpu/{step}/cpu.cfs_quota_us": -1,
        f"cpu/{step}/cpu.cfs_period_us": 100000,
        f"cpu/{step}/../cpu.cfs_quota_us": 450000,
        f"cpu/{step}/../cpu.cfs_period_us": 100000,
        f"cpuacct/{step}/cpuacct.usage": 12_500_000_000,
    })  # fmt: skip
    return Cgroups(10, proc.path, root)


@pytest.mark.parametrize("version", ["version_1", "version_2"])
def test_a_slurm_step(version: str, request: pytest.FixtureRequest) -> None:
    cgroups: Cgroups = request.getfixturevalue(version)
    assert cgroups.memory_limit() == 64 * GB
    assert cgroups.cpu_limit() == 4.5
    assert cgroups.cpu_seconds() == 12.5
    assert cgroups.memory_used() == 7 * GB  # files that it has read can be dropped


def test_outside_of_slurm_only_limits_are_taken(tmp_path: Path, proc: Proc) -> None:
    _in(proc, "0::/user.slice/session-3.scope\n")
    root = tmp_path / "cgroup"
    _write(root, {"cgroup.controllers": "", "user.slice/session-3.scope/memory.current": 5})
    _write(root, {"user.slice/memory.max": 3 * GB})
    cgroups = Cgroups(10, proc.path, root)
    assert cgroups.memory_limit() == 3 * GB
    assert (cgroups.cpu_limit(), cgroups.cpu_seconds(), cgroups.memory_used()) == (None,) * 3


def test_a_container_that_mounts_only_its_own_group(tmp_path: Path, proc: Proc) -> None:
    _in(proc, "0::/docker/abc\n")
    _write(tmp_path / "cgroup", {"cgroup.controllers": "", "memory.max": GB})
    assert Cgroups(10, proc.path, tmp_path / "cgroup").memory_limit() == GB


def _host(proc: Proc, cgroups: Cgroups, **env: str) -> tuple[HostUsage, ProcessTree]:
    (proc.path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\n")
    (proc.path / "stat").write_text("cpu  100 0 100 900 50 0 0 70 0 0\ncpu0 1 2\n")
    tree = ProcessTree(10, proc=str(proc.path))
    return HostUsage(tree, env, cgroups, str(proc.path)), tree


def test_the_node_and_the_step(version_2: Cgroups, proc: Proc, tmp_path: Path) -> None:
    host, tree = _host(proc, version_2, SLURM_TASK_PID="10")
    first = host.sample(tree.sample(), 0)
    assert first["cpu"] is None
    (proc.path / "stat").write_text(f"cpu  {100 + 3 * TICKS} 0 100 950 60 0 0 90 0 0\n")
    step = tmp_path / "cgroup/system.slice/slurmstepd.scope/job_7/step_0"
    (step / "cpu.stat").write_text("usage_usec 15500000\n")
    found = host.sample(tree.sample(), 2.0)
    assert found == {
        "cpu": 1.5,
        "cpu_node": 1.5,
        "memory": 7 * GB,
        "memory_node": 700 << 10,
    }


@pytest.mark.parametrize("env", [{}, {"SLURM_TASK_PID": "9"}], ids=["batch", "shell"])
def test_the_tree_where_the_step_is_not_ours_alone(
    env: dict[str, str], version_2: Cgroups, proc: Proc
) -> None:
    host, tree = _host(proc, version_2, **env)
    proc.process(10, own=50, resident=8 << 20)
    host.sample(tree.sample(), 0)
    proc.process(10, own=50 + TICKS, resident=8 << 20)
    found = host.sample(tree.sample(), 2.0)
    assert (found["cpu"], found["memory"]) == (0.5, 8 << 20)


def test_the_tree_where_there_is_no_step(proc: Proc, tmp_path: Path) -> None:
    _in(proc, "0::/\n")
    _write(tmp_path / "cgroup", {"cgroup.controllers": ""})
    host, tree = _host(proc, Cgroups(10, proc.path, tmp_path / "cgroup"), SLURM_MEM_PER_NODE="2048")
    proc.process(10, own=50, resident=8 << 20)
    host.sample(tree.sample(), 0)
    proc.process(10, own=50 + 3 * TICKS, resident=8 << 20)
    found = host.sample(tree.sample(), 2.0)
    assert found["cpu"] == 1.5
    assert found["memory"] == 8 << 20
    assert host.facts()["memory_limit"] == 2 * GB
    assert host.facts()["memory_total"] == 1000 << 10


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, None),
        ({"MEM_PER_NODE": "0", "MEM_PER_CPU": "512"}, None),
        ({"MEM_PER_CPU": "512", "CPUS_ON_NODE": "8"}, 4 * GB),
        ({"MEM_PER_NODE": "2048", "CPUS_ON_NODE": "8"}, 2 * GB),
    ],
)
def test_what_slurm_grants(
    given: dict[str, str], limit: int | None, proc: Proc, tmp_path: Path
) -> None:
    _in(proc, "0::/\n")
    _write(tmp_path / "cgroup", {"cgroup.controllers": ""})
    env = {f"SLURM_{name}": value for name, value in given.items()}
    host, _ = _host(proc, Cgroups(10, proc.path, tmp_path / "cgroup"), **env)
    assert host.facts()["memory_limit"] == limit


def test_cpus_are_those_that_are_allowed_and_given(proc: Proc, tmp_path: Path) -> None:
    _in(proc, "0::/\n")
    root = tmp_path / "cgroup"
    _write(root, {"cgroup.controllers": ""})
    tree = ProcessTree(os.getpid())
    here = len(os.sched_getaffinity(0))
    assert HostUsage(tree, {}, Cgroups(10, proc.path, root)).facts()["cpus"] == here
    given = {"SLURM_CPUS_ON_NODE": "1"}
    assert HostUsage(tree, given, Cgroups(10, proc.path, root)).facts()["cpus"] == 1
    _write(root, {"cpu.max": "50000 100000"})
    assert HostUsage(tree, {}, Cgroups(10, proc.path, root)).facts()["cpus"] == 1


def test_this_machine_has_groups_that_can_be_read() -> None:
    limit = Cgroups().memory_limit()
    assert limit is None or limit > 1 << 20
