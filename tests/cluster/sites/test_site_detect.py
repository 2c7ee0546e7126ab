"""A site from what Slurm says."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.sites import NodeShape, detect_site, dump_site
from allranks.cluster.sites import scontrol_nodes as records
from allranks.cluster.sites.site_detection import cluster_name, slurm_runner
from allranks.cluster.sites.site_toml import parse_site
from allranks.errors import MissingDependencyError, SlurmError

Text = Callable[..., str]
A100 = NodeShape(
    gpus=4, gpu_type="a100", gpu_vendor="nvidia", cpus=32, memory=64000, threads_per_core=2,
    reserved_cpus=2, reserved_memory=2000, nodes=2,
)  # fmt: skip


def test_whole_site(runner_of: Any) -> None:
    site = detect_site(runner_of())
    assert (site.name, site.slurm_version, site.requeue_allowed) == ("lab", "22.05.8", True)
    assert site.kill_wait == 30
    assert site.match.clusters == ("lab",)
    assert [each.name for each in site.partitions] == ["main", "low"]


def test_partition_limits(runner_of: Any) -> None:
    main, low = detect_site(runner_of()).partitions
    assert (main.max_time, main.max_nodes, main.max_cpus_per_node) == (None, None, None)
    assert (main.default, main.exclusive, main.preemptible) == (True, False, False)
    assert (low.max_time, low.max_nodes) == (36 * 3600, 2)
    assert (low.max_cpus_per_node, low.max_memory_per_node) == (16, 8000)
    assert (low.default, low.exclusive, low.preemptible) == (False, True, True)
    assert "DRAIN" in low.note


def test_nodes_are_grouped_and_future_ones_left_out(runner_of: Any) -> None:
    main, low = detect_site(runner_of()).partitions
    assert low.shapes == (A100,)
    assert main.shapes[0] == A100
    assert main.shapes[1:] == (NodeShape(cpus=32, memory=64000, threads_per_core=2, nodes=1),)
    assert (main.shapes[0].usable_cpus, main.shapes[0].usable_memory) == (30, 62000)


def test_reserved_cores_without_effective_count(node: Text, runner_of: Any) -> None:
    old = node("a1").replace("CPUEfctv=30 ", "")
    shape = detect_site(runner_of(nodes=old)).partitions[0].shapes[0]
    assert shape.reserved_cpus == 2


def test_node_with_two_gpu_types_is_two_shapes(node: Text, runner_of: Any) -> None:
    mixed = node("a1", gres="gpu:a100:3(S:0,1),gpu:1g.5gb:7(S:0),mps:400")
    shapes = detect_site(runner_of(nodes=mixed)).partitions[0].shapes
    assert [(each.gpu_type, each.gpus) for each in shapes] == [("a100", 3), ("1g.5gb", 7)]


def test_keys_of_newer_versions_are_passed_over(node: Text, runner_of: Any) -> None:
    new = node("a1", state="IDLE+CLOUD+POWERED_DOWN").replace(
        " NodeAddr", " GresDrain=N/A GresUsed=gpu:a100:1(IDX:0) NodeAddr"
    )
    shapes = detect_site(runner_of(nodes=new)).partitions[0].shapes
    assert [(each.gpu_type, each.gpus, each.nodes) for each in shapes] == [("a100", 4, 1)]


def test_name_is_kept_and_text_goes_both_ways(runner_of: Any) -> None:
    site = detect_site(runner_of(), name="mine")
    assert site.name == "mine"
    assert parse_site(dump_site(site), "mine.toml", "mine") == site


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:a100:4(S:0-1)", [("a100", 4)]),
        ("gpu:4(S:0,1)", [(None, 4)]),
        ("gpu:(null):2(S:0)", [(None, 2)]),
        ("gpu:mi250:8,shard:16", [("mi250", 8)]),
        ("shard:4,gpu:v100:2", [("v100", 2)]),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", [("a100", 4)]),
        ("(null)", []),
        ("", []),
        (None, []),
    ],
)
def test_gres(gres: str | None, found: list[tuple[str | None, int]]) -> None:
    assert records.gpus(gres) == found


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("a100", "nvidia"), ("A100fat", "nvidia"), ("h200", "nvidia"), ("gh200", "nvidia"),
        ("gb200", "nvidia"), ("rtx_2080_ti", "nvidia"), ("nvidia_a100_1g.5gb", "nvidia"),
        ("1g.20gb", "nvidia"), ("tesla", "nvidia"), ("l40s", "nvidia"),
        ("mi250x", "amd"), ("MI300A", "amd"), ("gfx90a", "amd"), ("ponte", None), (None, None),
    ],
)  # fmt: skip
def test_vendor(name: str | None, vendor: str | None) -> None:
    assert records.vendor(name) == vendor


def test_ten_thousand_nodes(node: Text, runner_of: Any) -> None:
    lines = "\n".join(node(f"n{each:05}") for each in range(10_000))
    partition = detect_site(runner_of(nodes=lines)).partitions[0]
    assert [each.nodes for each in partition.shapes] == [10_000]


def test_cluster_without_nodes_or_partitions(runner_of: Any) -> None:
    site = detect_site(runner_of(partitions="No partitions in the system\n", nodes=""))
    assert site.partitions == ()


def test_no_slurm(tmp_path: Path) -> None:
    run = slurm_runner({"PATH": str(tmp_path)})
    with pytest.raises(MissingDependencyError, match=r"no Slurm.*\n.*login node"):
        detect_site(run)


def test_configuration_that_is_not_there(tmp_path: Path) -> None:
    run = slurm_runner({"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "none.conf")})
    with pytest.raises(SlurmError, match=r"SLURM_CONF names .*none.conf, which is not there"):
        detect_site(run)


def _scontrol(folder: Path, body: str) -> dict[str, str]:
    tool = folder / "scontrol"
    tool.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(folder)}


def test_controller_does_not_answer(tmp_path: Path) -> None:
    env = _scontrol(tmp_path, "time.sleep(60)")
    with pytest.raises(SlurmError, match=r"did not answer 'scontrol show config' within 1 s"):
        detect_site(slurm_runner(env, timeout=1))


def test_controller_refuses(tmp_path: Path) -> None:
    said = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"
    env = _scontrol(tmp_path, f"sys.exit({said!r})")
    with pytest.raises(SlurmError, match=r"connect failure.*\n.*scontrol ping"):
        detect_site(slurm_runner(env))


def test_environment_of_the_user_does_not_change_the_output(tmp_path: Path) -> None:
    body = "import os; print('ClusterName = ' + str('SCONTROL_ALL' in os.environ))"
    env = _scontrol(tmp_path, body) | {"SCONTROL_ALL": "1"}
    assert cluster_name(slurm_runner(env)) == "False"


def test_cluster_name(runner_of: Any) -> None:
    assert cluster_name(runner_of()) == "lab"
    with pytest.raises(SlurmError, match="name of its cluster"):
        cluster_name(lambda _: "ClusterName             = (null)\n")


@pytest.mark.slurm
def test_real_cluster() -> None:
    testing = pytest.importorskip("allranks.cluster.sandbox.testing")
    try:
        sandbox = testing.sandbox_for_tests()
        with sandbox as cluster:
            site = detect_site(slurm_runner({**cluster.env}))
    except MissingDependencyError as error:
        pytest.skip(str(error))
    assert site.partitions
    assert all(each.nodes for each in site.partitions)
    assert all(each.shapes for each in site.partitions)
    assert parse_site(dump_site(site), "x.toml", "x") == site
