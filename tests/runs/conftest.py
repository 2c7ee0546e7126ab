"""A run folder as the agent writes it, without the agent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.runs import Run


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may write into the user's index or find the user's runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ALLRANKS_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def make(name: str = "train", **options: object) -> Run:
        root = Path(str(options.pop("root", tmp_path / "runs")))
        return Run.create(root, name, scheduler="slurm", cwd="/w", command=["python", "t.py"])

    return make


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user may look into, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
