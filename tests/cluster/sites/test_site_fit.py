"""Does a job fit: the words of the refusals, and the shares."""

from __future__ import annotations

import pytest

from allranks.cluster.sites import (
    NodeShape,
    Partition,
    ResourceRequest,
    Site,
    load_site,
    select_node_shape,
    select_partition,
    share_of_node,
)
from allranks.errors import SiteError

V100 = NodeShape(gpus=4, gpu_type="v100", cpus=40, memory=192 * 1024, nodes=10)
A100 = NodeShape(gpus=8, gpu_type="a100", cpus=128, memory=1024 * 1024, nodes=4)
CPU = NodeShape(cpus=96, memory=384 * 1024)
SITE = Site(
    name="lab",
    partitions=(
        Partition("v100", (V100,), nodes=10, max_time=2 * 86400, default=True),
        Partition("a100", (A100,), nodes=4, max_time=86400, max_nodes=2),
        Partition("cpu", (CPU,), nodes=100),
    ),
)


def refusal(**asked: object) -> str:
    with pytest.raises(SiteError) as caught:
        select_partition(SITE, ResourceRequest(**asked))  # type: ignore[arg-type]
    return str(caught.value)


def test_gpus() -> None:
    assert refusal(gpus_per_node=8) == (
        "Job asks for 8 GPUs per node, but partition 'v100' has 4.\n"
        "Use --gpus-per-node 4, or --partition a100 (8 per node)."
    )


def test_gpus_nowhere() -> None:
    assert refusal(gpus_per_node=16, partition="a100") == (
        "Job asks for 16 GPUs per node, but partition 'a100' has 8.\nUse --gpus-per-node 8."
    )


def test_no_gpus_at_all() -> None:
    assert refusal(gpus_per_node=1, partition="cpu") == (
        "Job asks for 1 GPU per node, but partition 'cpu' has none.\n"
        "Use --partition v100 (4 per node), or --partition a100 (8 per node)."
    )


def test_type() -> None:
    assert refusal(gpus_per_node=2, gpu_type="A100") == (
        "Job asks for GPUs of type A100, but partition 'v100' has v100 (4 per node).\n"
        "Use --gpus-per-node v100:2, or --partition a100 (a100:8)."
    )


def test_type_in_any_case_and_its_count() -> None:
    assert select_partition(SITE, ResourceRequest(gpus_per_node=4, gpu_type="V100")).name == "v100"
    assert refusal(gpus_per_node=5, gpu_type="V100") == (
        "Job asks for 5 v100 GPUs per node, but partition 'v100' has 4.\n"
        "Use --gpus-per-node v100:4."
    )


def test_type_is_refused_where_slurm_has_none() -> None:
    site = Site("x", partitions=(Partition("p", (NodeShape(gpus=4),)),))
    with pytest.raises(SiteError, match=r"GPUs without a type.*\nUse --gpus-per-node 4"):
        select_partition(site, ResourceRequest(gpus_per_node=4, gpu_type="v100"))


def test_cpus_memory_nodes_time_together() -> None:
    assert refusal(
        nodes=11, gpus_per_node=4, cpus_per_node=64, memory_per_node=256 * 1024, time=3 * 86400
    ) == (
        "Job asks for 64 CPUs per node, but partition 'v100' has 40 for jobs.\n"
        "Job asks for 256G of memory per node, but partition 'v100' has 192G for jobs.\n"
        "Job asks for 11 nodes, but partition 'v100' has 10.\n"
        "Job asks for 3-00:00:00, but partition 'v100' allows 2-00:00:00.\n"
        "Use at most 40 CPUs per node and --memory 192G and --nodes 10 and --time 2-00:00:00."
    )


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"cpus_per_node": 96}, "--partition a100 (128 CPUs per node)"),
        ({"memory_per_node": 300 * 1024}, "--partition a100 (1024G per node)"),
        ({"nodes": 50}, "--partition cpu (up to 100 nodes)"),
        ({"time": 86400, "gpus_per_node": 8, "nodes": 2}, "--partition a100 (8 per node)"),
    ],
)
def test_other_partitions_are_named(asked: dict[str, object], line: str) -> None:
    assert line in refusal(**asked)


def test_nothing_helps() -> None:
    assert "No partition of site 'lab'" in refusal(
        gpus_per_node=1, partition="cpu", memory_per_node=2**30
    )


def test_max_nodes_of_a_job() -> None:
    assert "allows 2 for a job" in refusal(nodes=3, partition="a100")


def test_nodes_of_one_kind() -> None:
    site = Site("x", partitions=(Partition("p", (V100, A100), nodes=14),))
    assert select_partition(site, ResourceRequest(nodes=14)).name == "p"
    with pytest.raises(SiteError, match="11 nodes, but partition 'p' has 10 of that kind"):
        select_partition(site, ResourceRequest(nodes=11, gpus_per_node=1, gpu_type="v100"))


def test_one_kind_of_node_must_have_all() -> None:
    fat = NodeShape(gpus=1, cpus=256, memory=4096 * 1024)
    site = Site("x", partitions=(Partition("p", (V100, fat)),))
    with pytest.raises(SiteError, match="256 CPUs per node, but partition 'p' has 40"):
        select_partition(site, ResourceRequest(gpus_per_node=4, cpus_per_node=256))


def test_advice_holds_together() -> None:
    small, fat = NodeShape(cpus=64, memory=1000), NodeShape(cpus=32, memory=9000)
    site = Site("x", partitions=(Partition("p", (small, fat)),))
    with pytest.raises(SiteError, match="at most 64 CPUs per node and --memory 1000M"):
        select_partition(site, ResourceRequest(cpus_per_node=99, memory_per_node=99999))


def test_unknown_partition() -> None:
    assert refusal(partition="A10") == (
        "Site 'lab' has no partition 'A10'.\n"
        "Did you mean --partition a100? There is: v100, a100, cpu."
    )
    assert refusal(partition="zzz").endswith("\nThere is: v100, a100, cpu.")


def test_several_partitions_one_fits() -> None:
    assert (
        select_partition(SITE, ResourceRequest(gpus_per_node=8, partition="v100,a100")).name
        == "a100"
    )


def test_partition_limits_cap_the_nodes() -> None:
    partition = Partition("p", (A100,), max_cpus_per_node=64, max_memory_per_node=1024)
    site = Site("x", partitions=(partition,))
    with pytest.raises(SiteError, match=r"has 64 for jobs(.|\n)*has 1G for jobs"):
        select_partition(site, ResourceRequest(cpus_per_node=65, memory_per_node=2048))


def test_what_is_not_known_is_not_checked() -> None:
    assert (
        select_partition(Site("x"), ResourceRequest(gpus_per_node=99, partition="any")).name
        == "any"
    )
    bare = Site("x", partitions=(Partition("p"), Partition("q", (NodeShape(gpus=4),))))
    assert (
        select_partition(bare, ResourceRequest(nodes=999, gpus_per_node=99, time=10**9)).name == "p"
    )
    assert (
        select_partition(
            bare, ResourceRequest(partition="q", gpus_per_node=4, cpus_per_node=999)
        ).name
        == "q"
    )


def test_default_partition_of_the_site_goes_first() -> None:
    site = Site("x", partitions=SITE.partitions, default_partition="cpu")
    assert select_partition(site, ResourceRequest()).name == "cpu"
    assert select_partition(SITE, ResourceRequest()).name == "v100"


def test_share_of_lumi() -> None:
    shape = load_site("lumi").partitions[0].shapes[0]
    assert share_of_node(shape, 8)[:2] == (56, 472 * 1024)
    assert share_of_node(shape, 2)[:2] == (14, 118 * 1024)
    assert (
        share_of_node(shape, 2).why
        == "2 of the node's 8 GPUs; a node has 56 CPUs and 480G for jobs"
    )


def test_share_is_whole_cores_per_gpu() -> None:
    shape = NodeShape(gpus=4, cpus=54, threads_per_core=2)
    assert share_of_node(shape, 1).cpus == 12
    assert share_of_node(shape, 4).cpus == 48
    assert share_of_node(NodeShape(gpus=8, cpus=4), 2).cpus == 2


def test_share_of_small_or_unknown_nodes() -> None:
    assert share_of_node(NodeShape(gpus=4, cpus=8, memory=4000), 2)[:2] == (4, 1968)
    assert share_of_node(NodeShape(gpus=4), 4) == (None, None, "4 of the node's 4 GPUs")
    assert share_of_node(CPU, 0)[:2] == (96, 378 * 1024)


def test_shape_to_plan_for_is_the_smallest_that_fits() -> None:
    partition = load_site("alvis").partitions[0]
    shape = select_node_shape(partition, ResourceRequest(gpus_per_node=4, gpu_type="a100"))
    assert shape is not None
    assert (shape.gpu_type, shape.memory) == ("A100", 256 * 1024)
    large = ResourceRequest(gpus_per_node=4, gpu_type="a100", memory_per_node=400 * 1024)
    shape = select_node_shape(partition, large)
    assert shape is not None
    assert shape.memory == 512 * 1024
    assert select_node_shape(Partition("p"), ResourceRequest()) is None
