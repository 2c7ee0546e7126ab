"""What tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's run folder is its own, whatever the process did before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("allranks.train.folder._own", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)
