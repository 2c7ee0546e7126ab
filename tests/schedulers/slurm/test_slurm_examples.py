"""The example jobs, each a job script that people write by hand, really run.

The files are taken as they are; what belongs to their own clusters (partition, account, sizes) is
given on the command line, which wins over the file. Environments are small stand-ins that follow the
real ones' protocol.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from command_rig import ROOT, runner

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

CONDA = """
conda() { [ "$1" = activate ] && export CONDA_DEFAULT_ENV="$2"; }
"""
MODULE = '() { if [ "$1" = load ]; then export LOADED="$LOADED $2"; fi; }'
APPTAINER = """#!/bin/bash
shift
while [[ $1 == --* ]]; do case $1 in --nv | --rocm) shift ;; *) shift 2 ;; esac; done
export WITH_CONDA=true
"${@:2}"
"""

LAST_OF_TWO = r"rank 1/2 on node1"
LAST_OF_FOUR = r"rank 3/4 on node[12]"
# torch's gloo threads may abort a rank at the very end, after all training, whatever started it: they
# can outlive the interpreter (pytorch/pytorch#179291). Such an end says nothing about us: once more.
GLOO_RACE = "terminate called without an active exception"

JOBS = {
    "grete-ddp": (["--gpus-per-node", "2"], LAST_OF_TWO),
    "torchrun-one-node": (["--memory", "1G"], r"of 2 ranks"),
    "spawning": (["--memory", "1G"], r"of 2 ranks"),
    "lumi-ddp": (["--gpus-per-node", "2", "--cpus-per-task", "4"], LAST_OF_TWO),
    "trixie-launch": (["--gpus-per-node", "2"], r"rank 3 "),
    "trixie-accelerate": (  # the cluster's GPUs are pretended
        ["--gpus-per-node", "2", "--cpus-per-task", "4", "--env", "ACCELERATE_USE_CPU=true"],
        r"process 3 of 4",
    ),
    "alvis-torchrun": (["--gpus-per-node", "2"], LAST_OF_FOUR),
}
"""Job file → the options for this cluster, and what shows that all ranks took part."""


@pytest.fixture
def stand_ins(tmp_path: Path, slurm_env: dict[str, str]) -> dict[str, str]:
    profile = tmp_path / "conda/etc/profile.d/conda.sh"
    profile.parent.mkdir(parents=True)
    profile.write_text(CONDA)
    apptainer = tmp_path / "bin/apptainer"
    apptainer.parent.mkdir()
    apptainer.write_text(APPTAINER)
    apptainer.chmod(0o755)
    (apptainer.parent / "singularity").symlink_to(apptainer)
    return {
        **slurm_env,
        "PATH": f"{apptainer.parent}:{slurm_env['PATH']}",
        "BASH_FUNC_module%%": MODULE,
        "ALLRANKS_RUNS": str(tmp_path / "runs"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_file_of_another_cluster_runs_here(
    name: str, tmp_path: Path, stand_ins: dict[str, str]
) -> None:
    options, sign = JOBS[name]
    file = ROOT / "examples/jobs" / f"{name}.toml"
    command = runner(ROOT, stand_ins)
    detected = command("sites", "detect", "--name", "here", "-o", str(tmp_path / "here.toml"))
    assert detected.returncode == 0, detected.stderr
    options = [
        *options,
        "--site",
        str(tmp_path / "here.toml"),
        "--partition",
        "main",
        "--time",
        "5m",
    ]
    if "conda_root" in file.read_text():
        options += ["--conda-root", str(tmp_path / "conda")]
    if "venv" in file.read_text():
        venv = tmp_path / "venv/bin"
        venv.mkdir(parents=True)
        (venv / "activate").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
        options += ["--venv", str(venv.parent)]
    for _ in range(3):
        done = command("submit", "--config", str(file), *options, "--follow", timeout=180)
        if GLOO_RACE not in done.stdout:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(sign, done.stdout), done.stdout
    assert "loss" in done.stdout
