"""Trainings on several ranks end: in time, together, with the right code, and leave nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from ranks_script_rig import HERE, started

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = str(HERE / "ranks_script_ends.py")
BESIDE = Path(sys.executable).parent


@pytest.mark.parametrize("deed", ["plain", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_good_end_is_quiet(tmp_path: Path, deed: str) -> None:
    """Gloo's threads must be gone before the interpreter is, or it aborts now and then."""
    with started(tmp_path, sys.executable, SCRIPT, "2", deed) as start:
        code, out, err = start.end()
    assert (code, err) == (0, "")
    assert re.fullmatch(r"trained on 2 in .*/runs/ranks_script_ends-\S+\n", out)
    assert len(list((tmp_path / "runs").glob("ranks_script_ends-*"))) == 1


@pytest.mark.slow
def test_ten_good_ends_in_a_row(tmp_path: Path) -> None:
    for _ in range(10):
        with started(tmp_path, sys.executable, SCRIPT, "2", "plain") as start:
            code, _, err = start.end()
        assert (code, err) == (0, "")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_error_on_one_rank_ends_all_and_is_named(tmp_path: Path, rank: int) -> None:
    with started(tmp_path, sys.executable, SCRIPT, "2", f"raise{rank}") as start:
        code, out, err = start.end(60)
        assert code == 1
        assert "ValueError: this sample is broken" in err
        assert "trained on" not in out
        start.until(lambda: not start.left())


@pytest.mark.parametrize(("sent", "to_group"), [("SIGINT", True), ("SIGTERM", False)])
def test_a_signal_leaves_no_process(tmp_path: Path, sent: str, to_group: bool) -> None:
    """Ctrl-C reaches every process of the group, a scheduler's TERM the first one."""
    with started(tmp_path, sys.executable, SCRIPT, "2", "forever") as start:
        start.until(lambda: len(list(tmp_path.glob("training-*"))) == 2)
        number = getattr(signal, sent)
        if to_group:
            os.killpg(start.process.pid, number)
        else:
            start.process.send_signal(number)
        start.until(lambda: start.process.poll() is not None)
        start.until(lambda: not start.left())
        code, out, err = start.end()
    assert code in (-number, 128 + number), err
    assert "trained on" not in out


@pytest.mark.slow  # tests/runtime/world/test_spawn.py does it without a training
def test_torchrun_decides_how_many_and_says_so_once(tmp_path: Path) -> None:
    torchrun = BESIDE / "torchrun"
    if not torchrun.exists():
        pytest.skip("there is no torchrun beside this Python")
    words = ("--standalone", "--nproc-per-node", "2", SCRIPT, "4", "told")
    with started(tmp_path, str(torchrun), *words) as start:
        code, out, err = start.end()
    assert code == 0, err
    assert (out + err).count("nprocs=4 is ignored: torchrun started 2 ranks.") == 1
    assert out.count("trained on 2 in") == 1
    assert len(list((tmp_path / "runs").glob("ranks_script_ends-*"))) == 1


def test_allranks_run_gives_its_folder(tmp_path: Path) -> None:
    """The Trainer makes no folder of its own, and asks for no ranks that are there already."""
    shutil.copy(SCRIPT, tmp_path / "train.py")
    words = ("-m", "allranks", "run", "--nprocs", "2", "train.py", "2", "told")
    with started(tmp_path, sys.executable, *words) as start:
        code, out, err = start.end()
    assert code == 0, err
    folders = [path for path in (tmp_path / "runs").iterdir() if (path / "run.json").exists()]
    assert len(folders) == 1
    assert f"trained on 2 in {folders[0]}" in out
    assert "is ignored" not in out + err
    lines = [json.loads(line) for line in (folders[0] / "metrics.jsonl").open()]
    steps = [line["step"] for line in lines if line["kind"] == "train"]
    assert steps == sorted(set(steps)) == [5, 8, 10, 15, 16, 20, 24]
