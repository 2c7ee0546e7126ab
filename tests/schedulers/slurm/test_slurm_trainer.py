"""One training script, unchanged: however its ranks are started, they train the same model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_rig import until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.torch]

TRAIN = """
import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import allranks
from allranks import TrainConfig, Trainer
from allranks.optimize_step import optimize_step

torch.set_num_threads(1)
torch.manual_seed(0)
Trainer.set_use_grad(True)

if __name__ == "__main__":
    x = torch.linspace(0, 1, 100).reshape(-1, 1)
    y = torch.sin(2 * torch.pi * x)
    dataloader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=1)
    parser.add_argument("--compute_setup", default="auto")
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo", "mpi"])
    args = parser.parse_args()
    train_config = TrainConfig(
        backend=args.backend, nprocs=args.nprocs, compute_setup=args.compute_setup,
        print_every=5, max_iter=50,
    )
    trainer = Trainer(
        model, optimizer, train_config, loss_fn="mse", optimize_step=optimize_step
    )
    trainer.fit(dataloader)
    here = allranks.world()
    told = {
        "rank": here.rank, "size": here.size, "local_rank": here.local_rank, "host": here.host,
        "launcher": here.launcher, "loss": float(trainer.metrics["train_loss"]),
        "weights": [value for each in model.parameters() for value in each.flatten().tolist()],
    }
    Path(os.environ["REPORT"], f"{here.rank}.json").write_text(json.dumps(told))
"""

Env = dict[str, str]
Reports = list[dict[str, Any]]
Started = Callable[..., Reports]

PYTHON = [sys.executable, "train.py", "--backend", "gloo"]
TWO = [*PYTHON, "--nprocs", "2"]
FOUR = [*PYTHON, "--nprocs", "4"]
SRUN = ["srun", "--time=5", "--cpus-per-task=2"]
TORCHRUN = (
    'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
    f"srun {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2"
    ' --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"'
    ' --rdzv-endpoint="$head:$((19000 + SLURM_JOB_ID % 1000))" train.py --backend gloo'
)
BATCH = ["sbatch", "--time=5", "--output=job.out"]
END = "\necho $? > end.part; mv end.part end"
WAYS: dict[str, tuple[int, str, list[str]]] = {
    "srun, one task": (2, "spawn", [*SRUN, "--nodes=1", "--ntasks=1", *TWO]),
    "batch script without srun": (2, "spawn", [*BATCH, "--nodes=1", f"--wrap={' '.join(TWO)}{END}"]),
    "mpirun": (2, "openmpi", ["/usr/bin/mpirun", "--oversubscribe", "-np", "2", *PYTHON]),
    "srun, one task per node": (
        4, "spawn", [*SRUN, "--nodes=2", "--ntasks-per-node=1", *FOUR],
    ),
    "srun, one task per rank": (4, "srun", [*SRUN, "--nodes=2", "--ntasks-per-node=2", *FOUR]),
    "torchrun": (
        4, "torchrun", [*BATCH, "--nodes=2", "--ntasks-per-node=1", f"--wrap={TORCHRUN}{END}"],
    ),
}  # fmt: skip


def started(folder: Path, words: list[str], env: Env) -> Reports:
    """What every rank reports at the end of this command, run in a new folder."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    env = {**env, "REPORT": str(folder)}
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    if words[0] == "sbatch":
        until((folder / "end").exists, 200)
        said = (folder / "job.out").read_text()
        assert (folder / "end").read_text() == "0\n", said
    found = [json.loads(path.read_text()) for path in folder.glob("[0-9]*.json")]
    assert found, said
    return sorted(found, key=lambda each: int(each["rank"]))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Env], Reports]:
    """The same training by plain python, once for each number of ranks."""
    known: dict[int, Reports] = {}

    def reports(size: int, env: Env) -> Reports:
        if size not in known:
            folder = tmp_path_factory.mktemp("plain")
            known[size] = started(folder, [*PYTHON, "--nprocs", str(size)], env)
        return known[size]

    return reports


def check_ranks(found: Reports, size: int, launcher: str) -> None:
    """Every rank took part once, and all hold the same model."""
    assert [(each["rank"], each["size"]) for each in found] == [(at, size) for at in range(size)]
    assert {each["launcher"] for each in found} == {launcher}
    assert all(each["weights"] == found[0]["weights"] for each in found)
    assert len({each["loss"] for each in found}) == 1


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_plain_python(
    size: int, clean_env: Env, alone: Callable[[int, Env], Reports], tmp_path: Path
) -> None:
    found = alone(size, clean_env)
    check_ranks(found, size, "spawn")
    (one,) = started(tmp_path / "one", PYTHON, clean_env)
    assert one["size"] == 1
    # The training is not a no-op: a larger global batch takes fewer steps and learns less.
    assert found[0]["loss"] > one["loss"]
    assert found[0]["weights"] != one["weights"]


# Of the others, test_slurm_world checks the detection and test_slurm_launchers the start.
QUICK = ("srun, one task", "srun, one task per node")


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS]
)
def test_every_way_to_start_trains_the_same_model(
    way: str, slurm_env: Env, clean_env: Env, alone: Callable[[int, Env], Reports], tmp_path: Path
) -> None:
    size, launcher, words = WAYS[way]
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    env = clean_env if way == "mpirun" else slurm_env
    found = started(tmp_path / "run", words, env)
    check_ranks(found, size, launcher)
    if size == 4:
        for host in ("node1", "node2"):
            local = [each["local_rank"] for each in found if each["host"] == host]
            assert sorted(local) == [0, 1]
    plain = alone(size, clean_env)[0]
    assert found[0]["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    assert found[0]["weights"] == pytest.approx(plain["weights"], abs=1e-6)
