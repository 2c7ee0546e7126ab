"""The job files of the examples render, and bash reads what comes out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "jobs").glob("*.toml"))
LAUNCH = {
    "grete-ddp": "python examples/jobs/linear_ddp.py",
    "spawning": "python3 examples/jobs/sine_spawn.py --nprocs 2",
    "torchrun-one-node": "--nnodes 1 --nproc-per-node 2",
    "lumi-ddp": "singularity exec --rocm",
    "lumi-deepspeed": "--deepspeed_config examples/jobs/ds_config.json",
    "trixie-launch": "-m torch.distributed.launch",
    "trixie-accelerate": "--num_processes 8 --num_machines 2",
    "alvis-torchrun": "--nnodes 2 --nproc-per-node 4",
    "alvis-horovod": "allranks.runtime.agent horovod-server",
    "alvis-horovod-tensorflow": "allranks.runtime.agent horovod-server",
    "alvis-tensorflow": "ALLRANKS_FRAMEWORK=tensorflow",
}
"""Words by which one sees that the job starts in the way that it is meant to."""


def test_all_files_are_here() -> None:
    assert {file.stem for file in FILES} == set(LAUNCH)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_renders(file: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ALLRANKS_", "SLURM_"))}
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "script", "--config", file.relative_to(ROOT)],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert LAUNCH[file.stem] in done.stdout
    checked = subprocess.run(
        ["bash", "-n"], input=done.stdout, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
