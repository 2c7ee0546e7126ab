"""Environments on a real cluster: what is set up there is what the ranks find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from allranks.job.environments import PURGE
from command_rig import Allranks
from conda_standin import make_conda

pytestmark = pytest.mark.slurm

TELL = """
import os, sys
print("tell", sys.prefix, os.environ.get("FLAVOUR"), os.environ.get("AWKWARD"), flush=True)
"""
AWKWARD = "two words, $(touch escaped) `touch escaped` 'single' \"double\" \\ ünï"


@pytest.fixture
def tell(tmp_path: Path) -> str:
    (tmp_path / "tell.py").write_text(TELL)
    return "tell.py"


def follow(slurm: Allranks, *words: str) -> str:
    done = slurm("submit", "-t", "5m", "--nprocs", "2", *words, "--follow", "tell.py", timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("tell ")[2] for line in done.stdout.splitlines() if "tell " in line]
    assert len(lines) == 2, done.stdout + done.stderr
    assert lines[0] == lines[1]
    return lines[0]


@pytest.mark.parametrize("where", ["batch", "node"])
def test_a_venv_and_a_set_up_script(where: str, slurm: Allranks, tell: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "my venv"], check=True
    )
    (tmp_path / "setup env.sh").write_text("export FLAVOUR=vanilla\n")
    words = [
        "--venv",
        str(tmp_path / "my venv"),
        "--setup",
        "setup env.sh",
        "--env",
        f"AWKWARD={AWKWARD}",
    ]
    said = follow(slurm, *words, "--setup-on", where)
    assert said == f"{tmp_path}/my venv vanilla {AWKWARD}"
    assert not (tmp_path / "escaped").exists()


def test_conda_by_its_activation_protocol(slurm: Allranks, tell: str, tmp_path: Path) -> None:
    """Its activation sources scripts of packages, which may fail; the activation itself may not."""
    root = make_conda(tmp_path / "conda", "torch")
    said = follow(slurm, "--conda-root", str(root), "--conda", "torch")
    assert said == f"{root}/envs/torch conda torch None"
    done = slurm(
        *("submit", "-t", "5m", "--conda-root", str(root), "--conda", "missing"),
        *("--follow", "tell.py"),
    )
    assert done.returncode == 1
    assert "Could not find conda environment: missing" in done.stdout


def test_modules_are_purged_and_loaded(slurm: Allranks, tell: str, tmp_path: Path) -> None:
    """A module function from a profile of the user's, as an exported function would be."""
    (tmp_path / "profile.sh").write_text(
        'module() { echo "module $*"; [ "$1" = purge ] || export FLAVOUR="$FLAVOUR+$2"; }\n'
        "export -f module\n"
    )
    words = ["--setup-command", f"source '{tmp_path}/profile.sh'"]
    done = slurm("script", *words, "--load", "GCC/13", "--load", "PyTorch/2.1", "tell.py")
    assert f"{PURGE}\nmodule load GCC/13\nmodule load PyTorch/2.1\n" in done.stdout
    environment = {"BASH_FUNC_module%%": '() { [ "$1" = purge ] || export FLAVOUR="$FLAVOUR+$2"; }'}
    submitted = slurm(
        *("submit", "-t", "5m", "--load", "GCC/13", "--load", "PyTorch/2.1", "--follow", "tell.py"),
        **environment,
    )
    assert "+GCC/13+PyTorch/2.1" in submitted.stdout, submitted.stdout + submitted.stderr


def test_a_container_runtime_gets_the_command_in_one_piece(
    slurm: Allranks, slurm_env: dict[str, str], tell: str, tmp_path: Path
) -> None:
    """The runtime is a stand-in that runs the command outside; the words around it are the real ones."""
    runtime = tmp_path / "bin/apptainer"
    runtime.parent.mkdir()
    runtime.write_text(
        "#!/bin/bash\n"
        f'printf "%q " "$@" >>{tmp_path}/calls; echo >>{tmp_path}/calls\n'
        "shift\nwhile [[ $1 == --* ]]; do case $1 in --nv) shift ;; *) shift 2 ;; esac; done\n"
        'shift\nexport FLAVOUR=contained\nexec "$@"\n'
    )
    runtime.chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "inner"], check=True)
    said = follow(
        slurm, "--container", "my image.sif", "--mount", "/data:/data", "--venv", str(tmp_path / "inner"),
        "--container-setup", "export AWKWARD=set-inside", "--env", f"PATH={runtime.parent}:{slurm_env['PATH']}",
    )  # fmt: skip
    assert said == f"{tmp_path}/inner contained set-inside"
    assert "my\\ image.sif" in (tmp_path / "calls").read_text()


def test_a_secret_reaches_the_ranks_and_no_file(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(
        "import os; print(len(os.environ['WANDB_API_KEY']), flush=True)\n"
    )
    words = ["--env", "WANDB_API_KEY=not-for-eyes", "--env", "PLAIN=shown", "--explain"]
    done = slurm("submit", "-t", "5m", *words, "--follow", "tell.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] 12" in done.stdout
    assert "not-for-eyes" not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any("PLAIN=shown" in path.read_text(errors="replace") for path in files)
    assert not any("not-for-eyes" in path.read_text(errors="replace") for path in files)
