"""What the framework tests share: environments of their own, and loss curves that are compared."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from command_rig import ROOT

CACHE = ROOT / ".cache" / "frameworks"
_LOSS = re.compile(r"\bloss (\d+) ([-+.\deE]+|nan|inf)\b")
CANNOT = 77


def environment(name: str) -> Path:
    """The venv of that name, made when it is not there; the test is skipped where that cannot be."""
    script = ROOT / "scripts" / "framework-venv"
    done = subprocess.run(
        [script, name, CACHE / name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-4000:]
    return CACHE / name


def with_environment(env: dict[str, str], venv: Path) -> dict[str, str]:
    """``env`` with the venv's programs first, as after its activation."""
    return {**env, "VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{env['PATH']}"}


def curve(text: str) -> list[float]:
    """The losses of lines such as ``loss 3 0.6931``, by their step; each step must come once."""
    found = [(int(step), float(value)) for step, value in _LOSS.findall(text)]
    steps = [step for step, _ in found]
    assert len(set(steps)) == len(steps), f"a step was told twice: {steps}\n{text}"
    return [value for _, value in sorted(found)]


def assert_same_curve(one: list[float], many: list[float], rel: float = 1e-4) -> None:
    """Several processes must learn what one learns, and learn at all."""
    assert len(one) >= 5
    assert len(many) == len(one), (one, many)
    assert many == pytest.approx(one, rel=rel), (one, many)
    assert one[-1] < one[0], one
