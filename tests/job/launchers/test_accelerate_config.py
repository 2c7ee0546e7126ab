"""Accelerate's settings file: read as accelerate writes it, and compared with the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.core.shell import join
from allranks.errors import JobError, UsageError
from allranks.job.accelerate_config import read_accelerate_file
from allranks.job.plan import Plan
from allranks.job.resolve import resolve

MACHINE = """\
# made by hand
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
deepspeed_config:
  zero_stage: 3
  num_machines: 9
gpu_ids: {gpus}
machine_rank: 0
main_process_ip: null
num_machines: 1   # of them
num_processes: 4
rdzv_backend: static
same_network: {same}
use_cpu: {cpu}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "train.py").write_text("import accelerate\n")
    return tmp_path


def settings(
    kind: str = "MULTI_GPU", gpus: str = "all", same: str = "true", cpu: str = "false"
) -> str:
    return MACHINE.format(kind=kind, gpus=gpus, same=same, cpu=cpu)


def default(text: str, name: str = "default_config.yaml") -> None:
    path = Path("hf/accelerate", name)
    path.parent.mkdir(parents=True)
    path.write_text(text)


def plan_of(*words: str, scheduler: str = "slurm", **fields: Any) -> Plan:
    given = {"script": "train.py", "launcher": "accelerate", "nprocs": 4, "launcher_args": words}
    return resolve({**given, **fields}, on_cluster=scheduler == "slurm")


def said(plan: Plan) -> str:
    return join(word for group in plan.launcher.task_words(plan) for word in group)


def test_what_is_read(here: Path) -> None:
    (here / "a.yaml").write_text(settings(gpus="'0,1'"))
    file = read_accelerate_file(here / "a.yaml")
    assert file.kind == "MULTI_GPU"
    assert file.values["gpu_ids"] == "0,1"
    assert file.values["num_machines"] == "1"
    assert "main_process_ip" not in file.values
    assert file.is_true("same_network")
    (here / "a.json").write_text('{"distributed_type": "FSDP", "use_cpu": true, "fsdp_config": {}}')
    assert read_accelerate_file(here / "a.json").kind == "FSDP"
    assert read_accelerate_file(here / "a.json").is_true("use_cpu")
    (here / "a.json").write_text("{")
    assert read_accelerate_file(here / "a.json").values == {}


def test_json_in_a_yaml_file() -> None:
    """``accelerate config default`` writes JSON into ``default_config.yaml``."""
    given = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, "use_cpu": False}
    default(json.dumps({**given, "num_processes": 4, "gpu_ids": None, "tpu_env": []}, indent=2))
    plan = plan_of()
    assert "--multi_gpu" not in said(plan)
    file = plan.accelerate_file
    assert file is not None
    assert file.values == {"distributed_type": "FSDP", "use_cpu": "false", "num_processes": "4"}


def test_what_accelerate_does_not_read() -> None:
    default('{"distributed_type": "FSDP"}', "default_config.json")
    assert plan_of().accelerate_file is None
    assert "--multi_gpu" in said(plan_of())


@pytest.mark.parametrize("kind", ["NO", "MULTI_GPU", "MULTI_CPU"])
def test_the_job_says_how_many_whatever_the_file_says(kind: str) -> None:
    default(settings(kind))
    plan = plan_of()
    assert "launch --multi_gpu --num_processes 4 --num_machines 1" in said(plan)
    assert "--rdzv_backend static" in said(plan)
    assert plan.notes == ()


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MEGATRON_LM"])
def test_an_engine_of_the_file_is_not_replaced_by_ddp(kind: str) -> None:
    default(settings(kind, same="false"))
    assert "--multi_gpu" not in said(plan_of())
    two = said(plan_of(nodes=2))
    assert ("--deepspeed_multinode_launcher standard" in two) == (kind == "DEEPSPEED")
    assert "--rdzv_backend c10d" in two


def test_an_engine_of_the_words_is_not_joined_by_another() -> None:
    assert "--multi_gpu" not in said(plan_of("--use_fsdp"))
    assert "--multi_gpu --num" in said(plan_of("--mixed_precision=bf16"))
    words = said(plan_of("--use_deepspeed", "--zero_stage=2", nodes=2))
    assert "launch --deepspeed_multinode_launcher standard --num_processes 4" in words


def test_one_network_means_the_static_way() -> None:
    default(settings())
    assert "--rdzv_backend static --same_network" in said(plan_of(nodes=2))
    with pytest.raises(JobError, match="same_network is true") as caught:
        plan_of(nodes=2, rendezvous="c10d")
    assert "use --rendezvous static" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (settings(gpus="0"), "gpu_ids is 0, but the job has 2 ranks on each node."),
        (settings("XLA"), r"distributed_type is XLA \(TPUs\), but the job has 2 GPUs per node."),
        ("compute_environment: AMAZON_SAGEMAKER\n", "compute_environment is AMAZON_SAGEMAKER"),
    ],
)
def test_what_contradicts_the_job(text: str, message: str) -> None:
    default(text)
    with pytest.raises(JobError, match=message) as caught:
        plan_of(gpus_per_node="2", nprocs=2)
    assert "default_config.yaml" in str(caught.value)
    assert "--" in str(caught.value).splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "cpu", "shown"),
    [
        ("NO", "true", "use_cpu: true"),
        ("FSDP", "true", "use_cpu: true"),
        ("MULTI_CPU", "false", "distributed_type: MULTI_CPU"),
        ("MULTI_CPU", "true", "use_cpu: true and distributed_type: MULTI_CPU"),
    ],
)
def test_cpus_in_the_file_do_not_stop_a_job_on_gpus(kind: str, cpu: str, shown: str) -> None:
    default(settings(kind, cpu=cpu))
    (note,) = plan_of(gpus_per_node="2", nprocs=2, cpus_per_task=8).notes
    assert note.endswith(f"has {shown}; the job still trains on its GPUs.")
    assert plan_of(nprocs=2).notes == ()


def test_one_process_would_train_on_the_cpu() -> None:
    default(settings("NO", cpu="true"))
    with pytest.raises(JobError, match="use_cpu is true, but the job has 1 GPU per node") as caught:
        plan_of(gpus_per_node="1", nprocs=1)
    assert "Set use_cpu: false there, or use --gpus-per-node 0." in str(caught.value)
    assert plan_of(nprocs=1).notes == ()


def test_a_named_file(here: Path) -> None:
    (here / "mine.yaml").write_text(settings("FSDP"))
    plan = plan_of("--config_file", "mine.yaml", nprocs=4)
    assert "--multi_gpu" not in said(plan)
    assert plan.notes == ()


def test_a_named_file_of_other_sizes(here: Path) -> None:
    (here / "mine.yaml").write_text(settings("FSDP"))
    with pytest.raises(JobError) as caught:
        plan_of("--config_file", "mine.yaml", nprocs=2)
    assert str(caught.value).startswith("mine.yaml: num_processes is 4, but the job has 2.\n")
    default(settings("FSDP"))
    assert plan_of(nprocs=2).notes == ()


def test_a_file_that_is_not_here() -> None:
    with pytest.raises(UsageError, match=r"no file other\.yaml"):
        plan_of("--config_file=other.yaml", scheduler="local")
    (note,) = plan_of("--config_file=other.yaml").notes
    assert note.startswith("other.yaml (--config_file) does not exist here, so it is not checked.")
    assert "--launcher-arg=--use_fsdp" in note
    assert plan_of("--config_file=other.yaml", "--use_fsdp").notes[0].endswith("is not checked.")
    assert plan_of("--config_file=other.yaml", nprocs=1).notes[0].endswith("is not checked.")


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (("--num_processes", "8"), "--nprocs"),
        (("--num-processes=8",), "--nprocs"),
        (("--main_process_port=1",), "--port"),
        (("--machine_rank=1",), "Leave it out"),
        (("--cpu",), "one process, not 4"),
    ],
)
def test_words_that_are_ours(words: tuple[str, ...], use: str) -> None:
    with pytest.raises(JobError, match=use):
        plan_of(*words)


def test_other_launchers_do_not_read_it() -> None:
    default(settings("XLA"))
    assert plan_of(launcher="torchrun").accelerate_file is None
