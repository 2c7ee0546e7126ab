"""Who am I? ``world()`` in jobs that people wrote themselves: plain sbatch, salloc and srun."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_rig import until

pytestmark = pytest.mark.slurm

# One write per process: lines of several tasks do not mix.
PROBE = """
import dataclasses, json, os
import allranks
w = allranks.world()
told = {**dataclasses.asdict(w), "device": w.device_index, "step": os.environ.get("SLURM_STEP_ID")}
os.write(1, (json.dumps(told) + "\\n").encode())
"""
TWO_BY_TWO = ["--nodes=2", "--ntasks-per-node=2"]
Allranks = Callable[..., "subprocess.CompletedProcess[str]"]
Worlds = list[dict[str, Any]]
Batch = Callable[..., Worlds]


@pytest.fixture
def probe(tmp_path: Path) -> str:
    path = tmp_path / "probe.py"
    path.write_text(PROBE)
    return f"{sys.executable} {path}"


@pytest.fixture
def batch(tmp_path: Path, slurm_env: dict[str, str]) -> Batch:
    """Submits a script with these lines and waits for its end."""

    def submit(lines: str, *options: str) -> Worlds:
        end, output = tmp_path / "end", tmp_path / "job.out"
        (tmp_path / "job.sh").write_text(
            f"#!/bin/bash\n{lines}\necho $? > end.part; mv end.part end\n"
        )
        subprocess.run(
            ["sbatch", "--time=5", f"--output={output}", *options, "job.sh"],
            cwd=tmp_path, env=slurm_env, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        until(end.exists, 100, lambda: output.read_text() if output.exists() else "no output")
        assert end.read_text() == "0\n", output.read_text()
        return worlds(output.read_text())

    return submit


def worlds(text: str) -> Worlds:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each["rank"]))


def places(found: Worlds) -> list[tuple[Any, ...]]:
    return [(w["rank"], w["host"], w["node_rank"], w["local_rank"]) for w in found]


def sizes(found: Worlds) -> set[tuple[Any, ...]]:
    return {(w["size"], w["local_size"], w["nodes"], w["launcher"]) for w in found}


def test_a_batch_script_is_one_process(batch: Batch, probe: str) -> None:
    (alone,) = batch(probe, *TWO_BY_TWO)
    assert sizes([alone]) == {(1, 1, 1, "plain")}
    assert places([alone]) == [(0, "node1", 0, 0)]
    assert alone["step"] in (None, "-5")  # -5: since 26.05
    assert "not started by srun: one process, though the job asks for 4 tasks" in alone["reason"]


def test_salloc_is_one_process(slurm_env: dict[str, str], probe: str) -> None:
    done = subprocess.run(
        ["salloc", *TWO_BY_TWO, "--time=5", *probe.split()],
        env=slurm_env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    (alone,) = worlds(done.stdout)
    assert sizes([alone]) == {(1, 1, 1, "plain")}
    assert "not started by srun" in alone["reason"]


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ("block", [(0, "node1", 0, 0), (1, "node1", 0, 1), (2, "node2", 1, 0), (3, "node2", 1, 1)]),
        (
            "cyclic",
            [(0, "node1", 0, 0), (1, "node2", 1, 0), (2, "node1", 0, 1), (3, "node2", 1, 1)],
        ),
    ],
)
def test_srun_two_by_two(
    distribution: str, expected: list[tuple[Any, ...]], batch: Batch, probe: str
) -> None:
    found = batch(f"srun --distribution={distribution} {probe}", *TWO_BY_TWO)
    assert places(found) == expected
    assert sizes(found) == {(4, 2, 2, "srun")}
    assert len({(w["master_addr"], w["master_port"]) for w in found}) == 1


def test_srun_of_an_uneven_step(batch: Batch, probe: str) -> None:
    found = batch(f"srun --ntasks=3 --distribution=block {probe}", *TWO_BY_TWO)
    assert places(found) == [(0, "node1", 0, 0), (1, "node1", 0, 1), (2, "node2", 1, 0)]
    assert [w["local_size"] for w in found] == [2, 2, 1]


def test_srun_without_a_batch_script(slurm_env: dict[str, str], probe: str) -> None:
    done = subprocess.run(
        ["srun", *TWO_BY_TWO, "--time=5", *probe.split()],
        env=slurm_env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert sizes(worlds(done.stdout)) == {(4, 2, 2, "srun")}


def test_a_second_step_on_one_node(batch: Batch, probe: str) -> None:
    found = batch(f"srun true\nsrun --nodes=1 --ntasks=2 --nodelist=node2 {probe}", *TWO_BY_TWO)
    assert places(found) == [(0, "node2", 0, 0), (1, "node2", 0, 1)]
    assert sizes(found) == {(2, 2, 1, "srun")}
    assert {w["step"] for w in found} == {"1"}


def test_gpus_per_task_are_private(batch: Batch, probe: str) -> None:
    found = batch(f"srun {probe}", *TWO_BY_TWO, "--gpus-per-task=1")
    assert {w["private_devices"] for w in found} == {True}
    assert [(w["local_rank"], w["visible_devices"], w["device"]) for w in found] == [
        (0, ["0"], 0), (1, ["1"], 0),
    ] * 2  # fmt: skip


def test_gpus_per_node_are_shared(batch: Batch, probe: str) -> None:
    found = batch(f"srun {probe}", *TWO_BY_TWO, "--gpus-per-node=2")
    assert {w["private_devices"] for w in found} == {False}
    assert [(w["visible_devices"], w["device"]) for w in found] == [
        (["0", "1"], 0),
        (["0", "1"], 1),
    ] * 2


@pytest.mark.torch
def test_torchrun_below_srun(batch: Batch, probe: str) -> None:
    pytest.importorskip("torch")
    script = probe.partition(" ")[2]
    found = batch(
        "export OMP_NUM_THREADS=1\n"
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        f"srun {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2"
        ' --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"'
        f' --rdzv-endpoint="$head:$((19000 + SLURM_JOB_ID % 1000))" {script}',
        "--nodes=2",
        "--ntasks-per-node=1",
    )
    assert sizes(found) == {(4, 2, 2, "torchrun")}
    assert [w["rank"] for w in found] == [0, 1, 2, 3]
    for host in ("node1", "node2"):
        assert sorted(w["local_rank"] for w in found if w["host"] == host) == [0, 1]


@pytest.mark.parametrize(("launcher", "tasks"), [("srun", 4), ("fork", 2)])
def test_cpus_per_task_reach_the_step(
    launcher: str, tasks: int, slurm: Allranks, tmp_path: Path
) -> None:
    """On 22.05 srun forgets what the batch script asked for, unless it is told again."""
    (tmp_path / "step.py").write_text(
        "import os, subprocess, allranks\n"
        "step = os.environ['SLURM_JOB_ID'] + '.' + os.environ['SLURM_STEP_ID']\n"
        "if allranks.world().rank == 0:\n"
        "    print(subprocess.check_output(['scontrol', '--oneliner', 'show', 'step', step], text=True))\n"
    )
    size = ["-N", "2", "--nprocs", "4", "--cpus-per-task", "3", "-t", "5m"]
    done = slurm("submit", *size, "-l", launcher, "--follow", "step.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" CPUs={3 * tasks} Tasks={tasks} " in done.stdout
