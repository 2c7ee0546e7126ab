"""What tests of training share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    """The test's run folder is its own, and no signal is known, whatever the process did before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that several lives of a script share, as under ``allranks run``."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(folder))
    return folder
