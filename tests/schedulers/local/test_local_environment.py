"""``allranks run`` sets up the environment that was typed, and leaves alone what a file says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import Allranks

TELL = "import os, sys; print('tell', sys.prefix, os.environ.get('FLAVOUR'), flush=True)\n"


@pytest.fixture
def tell(tmp_path: Path) -> str:
    (tmp_path / "tell.py").write_text(TELL)
    return "tell.py"


def told(text: str) -> list[str]:
    return [line.partition("tell ")[2] for line in text.splitlines() if "tell " in line]


def test_a_venv_is_activated(allranks: Allranks, tell: str, tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    done = allranks("run", "--nprocs", "2", "--venv", str(venv), tell)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [f"{venv} None"] * 2


def test_the_jobs_own_variables_and_python_survive_the_set_up(
    allranks: Allranks, tell: str
) -> None:
    lines = ["--setup-command", "export FLAVOUR=setup PYTHONPATH=/nowhere"]
    done = allranks("run", *lines, "--env", "FLAVOUR=mine", tell)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [f"{sys.prefix} mine"]


def test_a_set_up_that_fails_ends_the_start(allranks: Allranks, tell: str) -> None:
    failing = ["--setup-command", "echo no such module >&2; false"]
    done = allranks("run", *failing, tell)
    assert (done.returncode, told(done.stdout)) == (1, [])
    assert "no such module" in done.stderr
    by_mpi = allranks("run", "--launcher", "mpirun", *failing, tell)
    assert by_mpi.returncode != 0
    assert "The set-up of the environment failed: no such module" in by_mpi.stderr


def test_a_files_environment_is_for_the_cluster(
    allranks: Allranks, tell: str, tmp_path: Path
) -> None:
    (tmp_path / "allranks.toml").write_text('conda = "torch"\ncontainer = "image.sif"\n')
    done = allranks("run", tell)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [f"{sys.prefix} None"]
    assert "note: Not used on this machine: conda, container." in done.stderr
