"""Whether a script will tell of its steps, from its imports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from allranks.observe.view.run_view import has_trainer
from allranks.runs import Run


def _run(folder: Path, script: object) -> Run:
    run = folder / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"cwd": str(folder)}))
    _plan(run, script)
    return Run.open(run)


def _plan(run: Path, script: object) -> None:
    values = [{"name": "time", "value": "2h"}, 7, {"name": "script", "value": str(script)}]
    (run / "plan.json").write_text(json.dumps({"values": values}))


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
    (run.path / "training.json").write_text("{}")
    assert has_trainer(run)


def test_a_script_is_looked_for_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("from allranks import Trainer\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert has_trainer(_run(tmp_path, "train.py"))


def test_a_copy_of_the_script_is_what_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch  # edited since\n")
    run = _run(tmp_path, "./train.py")
    (run.path / "code").mkdir()
    (run.path / "code" / "train.py").write_text("from allranks import Trainer\n")
    (run.path / "code.json").write_text(json.dumps({"root": str(tmp_path)}))
    assert has_trainer(run)


def test_a_plan_that_is_not_written_yet_is_looked_for_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from allranks import Trainer\n")
    run = _run(tmp_path, "train.py")
    (run.path / "plan.json").unlink()
    assert not has_trainer(run)
    _plan(run.path, "train.py")
    assert has_trainer(run)


def test_a_pipe_in_the_place_of_a_script_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    assert not has_trainer(_run(tmp_path, tmp_path / "train.py"))
