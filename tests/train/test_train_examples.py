"""The examples, small but real: real data, several ways of starting, and what they reach."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import ROOT, Allranks

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def run(folder: Path, env: dict[str, str], name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(output: str) -> float:
    found = re.search(r"test accuracy ([\d.]+)%", output)
    assert found, output
    return float(found[1])


@pytest.mark.slow  # `make demo` is the same
def test_vit_reaches_95_percent_as_ddp(tmp_path: Path, clean_env: dict[str, str]) -> None:
    pytest.importorskip("sklearn")
    output = run(tmp_path, clean_env, "vit_digits", "--nprocs", "2", "--epochs", "12")
    assert "ddp over 2 ranks" in output
    assert accuracy(output) > 95
    (folder,) = (tmp_path / "runs").glob("vit_digits-*")
    assert {"metrics.jsonl", "curve.svg", "checkpoints"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_vit_reaches_95_percent_as_fsdp(allranks: Allranks) -> None:
    pytest.importorskip("sklearn")
    script = str(ROOT / "examples" / "vit_digits.py")
    done = allranks("run", "--nprocs", "2", script, "--strategy", "fsdp", "--epochs", "8")
    assert "fsdp over 2 ranks" in done.stdout
    assert accuracy(done.stdout) > 95


def test_sine(tmp_path: Path, clean_env: dict[str, str]) -> None:
    output = run(tmp_path, clean_env, "sine", "--nprocs", "2", "--epochs", "100")
    losses = [float(text) for text in re.findall(r"loss ([\d.e-]+)", output)]
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.slow
def test_gan(tmp_path: Path, clean_env: dict[str, str]) -> None:
    output = run(tmp_path, clean_env, "gan", "--nprocs", "2", "--epochs", "2")
    assert re.search(r"\d\.\d\d ± \d\.\d\d", output), output


@pytest.mark.slow  # a page of the documentation has such a loop, too
def test_own_loop(tmp_path: Path, clean_env: dict[str, str]) -> None:
    output = run(tmp_path, clean_env, "own_loop", "--nprocs", "2", "--epochs", "60")
    losses = [float(text) for text in re.findall(r"loss ([\d.e-]+)", output)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_missing_scikit_learn_is_told(tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('not here')\n")
    command = [sys.executable, str(ROOT / "examples" / "vit_digits.py")]
    env = {**clean_env, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "pip install scikit-learn" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
