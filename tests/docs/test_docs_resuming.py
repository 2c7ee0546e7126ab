"""The loop that docs/deadlines.md shows leaves in time and goes on where it left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from doc_blocks import page_program, read_blocks

from command_rig import ROOT

pytestmark = pytest.mark.torch


def test_the_loop_of_the_page_goes_on(clean_env: dict[str, str], tmp_path: Path) -> None:
    program = page_program(read_blocks(ROOT / "docs" / "deadlines.md"))
    (tmp_path / "page.py").write_text(program, encoding="utf-8")

    env = clean_env | {"OMP_NUM_THREADS": "1"}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "page.py"], cwd=tmp_path, env=env | more,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    left = run(ALLRANKS_DEADLINE=str(time.time()))
    assert left.returncode == 75, left.stderr
    again = run()
    assert left.stdout.startswith("allranks: saved step 1, ")
    assert (again.returncode, again.stdout) == (0, "resumes after step 1\n"), again.stderr
    assert [path.name for path in tmp_path.glob("mine*")] == ["mine.pt"]
