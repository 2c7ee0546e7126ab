"""What these tests share: a /proc in a folder, and a library that stands for the driver's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from proc_rig import Proc

SOURCE = Path(__file__).parent / "fake_nvml.c"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("gcc"):
        pytest.skip("no gcc here to build a library that stands for the driver's")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", path, SOURCE], check=True)
    return path
