"""Every command that the documentation shows is run, and ends as the page says."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import Block, page_script, read_blocks

ROOT = Path(__file__).parents[2]
OTHERS = {"sandbox.md"}
"""Its commands install packages and wait for minutes; tests/cluster/sandbox does the same in seconds."""
PAGES = [
    path
    for path in (
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    )
    if path.name not in OTHERS and any(block.runs for block in read_blocks(path))
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project: the examples, and a training script of the name that the docs use."""
    project = tmp_path / "project"
    left = shutil.ignore_patterns("runs", "__pycache__")
    shutil.copytree(ROOT / "examples", project / "examples", ignore=left)
    shutil.copy(ROOT / "examples" / "sine_ddp.py", project / "train.py")
    return project


@pytest.fixture
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not _ours(name)}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return {**kept, "PATH": path, "XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}


def _ours(name: str) -> bool:
    return name.startswith(("ALLRANKS_", "SLURM_", "SBATCH_")) or name == "PYTHONPATH"


def _run(blocks: list[Block], folder: Path, env: dict[str, str]) -> None:
    if "train.py" in page_script(blocks) and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    done = subprocess.run(
        ["bash", "-c", page_script(blocks)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_without_slurm(page: Path, folder: Path, env: dict[str, str]) -> None:
    blocks = [block for block in read_blocks(page) if not block.slurm]
    if not any(block.runs for block in blocks):
        pytest.skip("all of its commands need Slurm")
    _run(blocks, folder, env)


SLURM_PAGES = [path for path in PAGES if any(block.slurm for block in read_blocks(path))]


@pytest.mark.slurm
@pytest.mark.parametrize("page", SLURM_PAGES, ids=lambda path: path.name)
def test_commands_with_slurm(page: Path, folder: Path, env: dict[str, str], sandbox: Any) -> None:
    blocks = [block for block in read_blocks(page) if block.slurm or block.file]
    _run(blocks, folder, {**env, **sandbox.env})
