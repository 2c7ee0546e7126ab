"""Whether a script will tell of its steps, from its imports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from allranks.monitor.scripts import has_trainer


def _run(folder: Path, script: object) -> Path:
    run = folder / "run"
    run.mkdir()
    values = [{"name": "time", "value": "2h"}, 7, {"name": "script", "value": str(script)}]
    (run / "plan.json").write_text(json.dumps({"values": values}))
    return run


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("from allranks import TrainConfig, Trainer", True),
        ("import allranks", True),
        ("from allranks.train import loop", True),
        ("from helpers import fit", True),
        ("from allranks import init, world", False),
        ("import torch", False),
        ("def (", False),
    ],
)
def test_what_a_script_imports(tmp_path: Path, text: str, known: bool) -> None:
    (tmp_path / "helpers.py").write_text("from allranks import Trainer\n")
    (tmp_path / "train.py").write_text(text + "\n")
    assert has_trainer(_run(tmp_path, tmp_path / "train.py")) is known


def test_a_trainer_that_has_begun_needs_no_script(tmp_path: Path) -> None:
    run = _run(tmp_path, tmp_path / "gone.py")
    assert not has_trainer(run)
    (run / "training.json").write_text("{}")
    assert has_trainer(run)


def test_a_pipe_in_the_place_of_a_script_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    assert not has_trainer(_run(tmp_path, tmp_path / "train.py"))
