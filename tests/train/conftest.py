"""What tests of training share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's run folder is its own, and no signal is known, whatever the process did before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("allranks.train.folder._own", {})
    monkeypatch.setattr("allranks.runtime.preemption.deadline._shared", None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that several lives of a script share, as under ``allranks run``."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(folder))
    return folder


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forget how many fits there were, as a new process does."""

    def forget() -> None:
        monkeypatch.setattr("allranks.train.folder._fits", {})

    forget()
    return forget
