"""The configuration files, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.sandbox import SandboxConfig
from allranks.cluster.sandbox import slurm_conf as render
from allranks.cluster.sandbox.directories import Layout
from allranks.cluster.sandbox.sandbox_config import SandboxRecord, load_record

LAYOUT = Layout(Path("/tmp/x"))


def record(isolation: str = "hosts", **config: Any) -> SandboxRecord:
    return SandboxRecord("x", SandboxConfig(**config), isolation, "asked for", 20480, "22.05.8")


def lines(**config: Any) -> list[str]:
    return render.slurm_conf(record(**config), LAYOUT, "ada").splitlines()


def test_every_path_is_in_the_directory() -> None:
    paths = [word for line in lines() for word in line.split("=") if word.startswith("/")]
    assert {path for path in paths if not path.startswith("/tmp/x/")} == {"/bin/true"}


def test_low_is_preempted_by_main() -> None:
    partitions = [line for line in lines(grace=7) if line.startswith("PartitionName")]
    assert "main Default=YES PriorityTier=10" in partitions[0]
    assert "low PriorityTier=1 PreemptMode=REQUEUE GraceTime=7" in partitions[1]


@pytest.mark.parametrize("word", ["PreemptParameters", "cons_res", "CgroupPlugin", "HashPlugin"])
def test_no_line_that_some_version_refuses(word: str) -> None:
    assert word not in "\n".join(lines())


def test_a_setting_replaces_a_line_whatever_its_case() -> None:
    text = lines(settings={"killwait": "30", "MaxJobCount": "5", "MinJobAge": ""})
    assert "KillWait=30" in text
    assert "MaxJobCount=5" in text
    assert not [line for line in text if line.lower().startswith(("killwait=3\n", "minjobage"))]


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        ("plain", "NodeHostname=localhost NodeAddr=127.0.0.1 Port=20482"),
        ("hosts", "NodeHostname=node2 NodeAddr=127.160.0.2 Port=20482"),
        ("network", "NodeHostname=node2 NodeAddr=10.160.0.2 Port=20482"),
    ],
)
def test_where_a_node_is(isolation: str, words: str) -> None:
    text = render.slurm_conf(record(isolation), LAYOUT, "ada")
    assert f"NodeName=node2 {words}" in text


def test_accounting_tells_its_clients_where_munge_is() -> None:
    assert "AccountingStoragePass=socket=/tmp/x/munge/sock" in lines(accounting=True)
    assert "AccountingStorageTRES=gres/gpu" not in lines()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "Type=a100 File=/tmp/x/dev/gpu[0-3] Flags=nvidia_gpu_env"),
        ({"gpus": 1, "gpu_type": ""}, "Name=gpu File=/tmp/x/dev/gpu0 "),
        ({"gpu_env": "amd"}, "Flags=amd_gpu_env"),
    ],
)
def test_gpus(config: dict[str, Any], words: str) -> None:
    assert words in render.gres_conf(record(**config), LAYOUT)


def test_no_gpus_no_line() -> None:
    assert render.gres_conf(record(gpus=0), LAYOUT) == ""
    assert "Gres=" not in "\n".join(lines(gpus=0))


def test_small_nodes_still_take_a_job_on_all_their_cpus() -> None:
    assert "DefMemPerCPU=10" in lines(cpus=64, memory=640)


def test_nodes_see_each_other_and_what_the_machine_knew() -> None:
    text = render.hosts(record(), "vm", "127.0.1.1 vm\n10.9.9.9 mirror\n10.1.1.1 node1\n")
    assert "127.160.0.1 node1" in text
    assert "10.9.9.9 mirror" in text
    assert "10.1.1.1" not in text
    assert text.count("vm") == 1


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    layout = Layout(Path("/tmp/x"))
    object.__setattr__(layout, "root", tmp_path)
    assert load_record(layout) is None
    written = record(nodes=3, settings={"KillWait": "9"})
    written.save(layout)
    assert load_record(layout) == written
