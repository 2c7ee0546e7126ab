"""A rig for each test; what a test leaves running is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    for pid in rig.alive():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["fork", "exec"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)
