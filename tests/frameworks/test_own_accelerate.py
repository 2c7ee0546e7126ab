"""Scripts written for Accelerate and for transformers' Trainer, unchanged, by every launcher."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from framework_rig import environment, with_environment
from own_scripts_rig import (
    QUIET,
    TWO_NODES,
    assert_learns_the_same,
    cells,
    copied,
    needs,
    one_process,
)

from allranks.job.accelerate_config import read_accelerate_file
from command_rig import Allranks, runner

config_args = pytest.importorskip("accelerate.commands.config.config_args")
pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(400)]

PROCESS = re.compile(r"process (\d+) of (\d+) \(local (\d+)\) trains on (\S+)")


@pytest.fixture
def script(tmp_path: Path) -> str:
    return copied("accelerate_trainer.py", tmp_path)


def _assert_processes(text: str, expected: list[tuple[int, int]]) -> None:
    """Each process knows its number and its number on the node, and is on the CPU."""
    found = PROCESS.findall(text)
    assert sorted((int(index), int(local)) for index, _, local, _ in found) == expected, text
    assert {(count, device) for _, count, _, device in found} == {(str(len(expected)), "cpu:0")}


@pytest.mark.parametrize("launcher", cells("Accelerate", "here"))
def test_here(launcher: str, allranks: Allranks, script: str) -> None:
    needs(launcher)
    one = one_process(allranks, script)
    ranks = 4 if launcher == "accelerate" else 2
    start = ["run", "--launcher", launcher, "--nprocs", str(ranks)]
    done = allranks(*start, script, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    _assert_processes(done.stdout, [(rank, rank) for rank in range(ranks)])


@pytest.mark.slurm
@pytest.mark.parametrize("launcher", cells("Accelerate", "2 nodes"))
def test_two_nodes(launcher: str, slurm: Allranks, script: str) -> None:
    needs(launcher)
    one = one_process(slurm, script)
    ranks = 4 if launcher == "accelerate" else 2
    start = ["submit", "--launcher", launcher, *TWO_NODES, "--nprocs", str(ranks)]
    done = slurm(*start, script, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    _assert_processes(done.stdout, [(rank, rank % (ranks // 2)) for rank in range(ranks)])


def _settings(path: Path, **values: object) -> None:
    """A file as ``accelerate config`` writes it."""
    fields = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "debug": False,
        "mixed_precision": "no", "use_cpu": False, **values,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    config_args.ClusterConfig(**fields).to_yaml_file(str(path))


def test_files_that_accelerate_writes(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    _settings(
        path, distributed_type="FSDP", num_processes=8, num_machines=2, gpu_ids="0,1,2,3",
        main_process_ip="10.0.0.1", main_process_port=29500, same_network=True,
        mixed_precision="bf16", fsdp_config={"fsdp_version": 2}, commands=["a", "b"],
    )  # fmt: skip
    again = config_args.load_config_from_file(str(path))
    again.to_json_file(str(tmp_path / "w.json"))
    for file in (read_accelerate_file(path), read_accelerate_file(tmp_path / "w.json")):
        for key in ("num_processes", "num_machines", "machine_rank", "gpu_ids", "main_process_ip",
                    "main_process_port", "rdzv_backend", "mixed_precision"):  # fmt: skip
            assert file.values[key] == str(getattr(again, key)), (file.path, key)
        assert file.kind == "FSDP"
        assert file.is_true("same_network")
        assert not file.is_true("use_cpu")


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_settings_file_of_another_size(
    backend: str, allranks: Allranks, script: str, tmp_path: Path
) -> None:
    _settings(
        tmp_path / "hf" / "accelerate" / "default_config.yaml", num_processes=8, num_machines=2,
        machine_rank=1, main_process_ip="10.9.9.9", main_process_port=1, rdzv_backend=backend,
        same_network=True,
    )  # fmt: skip
    start = ["run", "--launcher", "accelerate", "--nprocs", "2", script]
    done = allranks(*start, timeout=300, HF_HOME=str(tmp_path / "hf"), **QUIET)
    assert_learns_the_same(done, one_process(allranks, script))
    _assert_processes(done.stdout, [(0, 0), (1, 1)])


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("same_network", "rendezvous"), [(True, None), (False, None), (False, "static")]
)
def test_a_settings_file_on_two_nodes(
    same_network: bool, rendezvous: str | None, slurm: Allranks, script: str, tmp_path: Path
) -> None:
    _settings(tmp_path / "mine.yaml", num_processes=2, num_machines=2, same_network=same_network)
    start = ["submit", "--launcher", "accelerate", *TWO_NODES, "--nprocs", "2"]
    start += ["--launcher-arg=--config_file=mine.yaml"]
    start += ["--rendezvous", rendezvous] if rendezvous else []
    done = slurm(*start, script, timeout=300, **QUIET)
    assert_learns_the_same(done, one_process(slurm, script))
    _assert_processes(done.stdout, [(0, 0), (1, 0)])


@pytest.mark.slurm
def test_settings_against_the_job(slurm: Allranks, script: str, tmp_path: Path) -> None:
    _settings(tmp_path / "mine.yaml", use_cpu=True)
    start = ["submit", "--launcher", "accelerate", "--gpus-per-node", "1", "--cpus-per-task", "2"]
    done = slurm(*start, "--launcher-arg=--config_file=mine.yaml", script)
    assert done.returncode == 2
    assert "mine.yaml: use_cpu is true, but the job has 1 GPU per node." in done.stderr


@pytest.fixture
def trainer(tmp_path: Path) -> list[str]:
    return [copied("transformers_trainer.py", tmp_path), "--output_dir", "out"]


def _with_transformers(launcher: str) -> Path:
    venv = environment("transformers")
    needs(launcher)
    if launcher == "deepspeed" and not list(venv.glob("lib/python*/site-packages/deepspeed")):
        pytest.skip("deepspeed is not installed beside transformers")
    return venv


def _one(folder: Path, env: dict[str, str], words: list[str]) -> list[float]:
    return one_process(runner(folder, env), *words)


@pytest.mark.parametrize("launcher", cells("transformers", "here"))
def test_transformers_here(
    launcher: str, clean_env: dict[str, str], trainer: list[str], tmp_path: Path
) -> None:
    env = with_environment(clean_env, _with_transformers(launcher))
    one = _one(tmp_path, env, trainer)
    ranks = "4" if launcher == "torchrun" else "2"
    start = ["run", "--launcher", launcher, "--nprocs", ranks]
    done = runner(tmp_path, env)(*start, *trainer, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    _assert_count(done, int(ranks))


@pytest.mark.slurm
@pytest.mark.parametrize("launcher", cells("transformers", "2 nodes"))
def test_transformers_on_two_nodes(
    launcher: str, slurm_env: dict[str, str], trainer: list[str], tmp_path: Path
) -> None:
    venv = _with_transformers(launcher)
    one = _one(tmp_path, with_environment(slurm_env, venv), trainer)
    start = ["submit", "--launcher", launcher, *TWO_NODES, "--nprocs", "2", "--venv", str(venv)]
    done = runner(tmp_path, slurm_env)(*start, *trainer, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    _assert_count(done, 2)


def _assert_count(done: subprocess.CompletedProcess[str], ranks: int) -> None:
    found = re.findall(r"process (\d+) of (\d+) trains on cpu", done.stdout)
    assert sorted(found) == [(str(rank), str(ranks)) for rank in range(ranks)], done.stdout
