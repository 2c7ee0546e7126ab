"""The Python of the pages about training is run: a page is one script, on one process and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import page_program, read_blocks

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PAGES = ("training.md", "data.md", "strategies.md", "callbacks.md", "own-loop.md", "deadlines.md")


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ALLRANKS_", "SLURM_"))}
    env = {**kept, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def _written(page: str, folder: Path) -> str:
    program = page_program(read_blocks(ROOT / "docs" / page))
    assert program.strip(), f"{page} has no Python to run"
    (folder / "page.py").write_text(program, encoding="utf-8")
    return "page.py"


@pytest.mark.parametrize("page", ["training.md", "own-loop.md"])
def test_page_on_one_process(page: str, tmp_path: Path) -> None:
    done = _run([sys.executable, _written(page, tmp_path)], tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES)
def test_page_on_two_ranks(page: str, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "allranks", "run", "--nprocs", "2", _written(page, tmp_path)]
    done = _run(run, tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
