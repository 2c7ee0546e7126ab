"""A script written for DeepSpeed, unchanged, with a configuration as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_scripts_rig import (
    QUIET,
    TWO_NODES,
    assert_learns_the_same,
    cells,
    copied,
    needs,
    one_process,
)

from command_rig import Allranks

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(400)]

ROW = "DeepSpeed, own script"
LOOSE = """\
{
  // shared by all processes
  "train_batch_size": 64,
  "zero_optimization": {
    "stage": 1
  },
  "zero_allow_untested_optimizer": true,  # Adam of torch
  "fp16": {
    "enabled": false,
  }
}
"""
TOLD = "note: ds_config.json is not strict JSON (line 2: a comment (//), line 7: a comment (#), line 9:"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "ds_config.json").write_text(LOOSE)
    script = copied("deepspeed_main.py", tmp_path)
    return [script, "--deepspeed", "--deepspeed_config", "ds_config.json"]


@pytest.mark.parametrize("launcher", cells(ROW, "here"))
def test_here(launcher: str, allranks: Allranks, words: list[str]) -> None:
    needs(launcher)
    one = one_process(allranks, *words)
    ranks = "4" if launcher == "torchrun" else "2"
    start = ["run", "--launcher", launcher, "--nprocs", ranks]
    done = allranks(*start, *words, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    assert TOLD in done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize("launcher", cells(ROW, "2 nodes"))
def test_two_nodes(launcher: str, slurm: Allranks, words: list[str]) -> None:
    needs(launcher)
    one = one_process(slurm, *words)
    ranks = "4" if launcher in ("deepspeed", "srun") else "2"
    start = ["submit", "--launcher", launcher, *TWO_NODES, "--nprocs", ranks]
    done = slurm(*start, *words, timeout=300, **QUIET)
    assert_learns_the_same(done, one)
    assert TOLD in done.stderr


def test_a_hopeless_configuration_starts_nothing(
    allranks: Allranks, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "ds_config.json").write_text('{"train_batch_size": 64 "x": [}\n')
    done = allranks("run", "--nprocs", "2", *words)
    assert done.returncode == 2
    assert "ds_config.json is not JSON: line 1, column 25: expecting ',' delimiter" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_batch_that_does_not_fit_starts_nothing(
    allranks: Allranks, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "ds_config.json").write_text('{"train_batch_size": 63}')
    done = allranks("run", "--nprocs", "2", *words)
    assert done.returncode == 2
    assert "train_batch_size 63 is not a multiple of 2 processes" in done.stderr
    assert not (tmp_path / "runs").exists()


WAITS = """\
# waits as torch does for the build of a part of deepspeed
import sys
from torch.utils.file_baton import FileBaton

baton = FileBaton(sys.argv[1])
if not baton.try_acquire():
    baton.wait()
print("built", flush=True)
"""


@pytest.mark.parametrize("launcher", ["fork", "torchrun"])
def test_the_lock_of_a_killed_build(launcher: str, allranks: Allranks, tmp_path: Path) -> None:
    import os

    lock = tmp_path / "ext" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 0))
    (tmp_path / "waits.py").write_text(WAITS)
    start = ["run", "--launcher", launcher, "--nprocs", "1", "waits.py", str(lock)]
    done = allranks(*start, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext"))
    assert done.returncode == 0, done.stderr
    assert "built" in done.stdout
    assert f"removed {lock}" in done.stderr
