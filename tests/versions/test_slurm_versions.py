"""The tests on a real cluster once more, with the Slurm of newer Debians: see scripts/slurm-root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

REPOSITORY = Path(__file__).parent.parent.parent
SCRIPT = REPOSITORY / "scripts" / "slurm-root"
ROOTS = REPOSITORY / ".cache" / "slurm-root"
CANNOT = 77

TESTS = ["tests/schedulers/slurm", "tests/cluster"]
# Those take long and start the same way as torchrun: once, on the Slurm of this machine, is enough.
LEFT_OUT = "not accelerate and not deepspeed"


def slurm_root(*words: str | Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs the script; skips the test when it says that it cannot be done here."""
    done = subprocess.run(
        [SCRIPT, *words],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip())
    return done


@pytest.fixture(scope="module", params=[("24.11", "trixie"), ("26.05", "sid")], ids=lambda p: p[0])
def root(request: pytest.FixtureRequest) -> Path:
    """A root with at least that Slurm; Debian's sid moves on."""
    version, suite = request.param
    folder = ROOTS / suite
    made = slurm_root("make", suite, folder, timeout=900)
    assert made.returncode == 0, made.stdout
    assert numbers(version_in(folder)) >= numbers(version)
    return folder


def version_in(root: Path) -> str:
    return slurm_root("run", root, "--", "slurmctld", "-V", timeout=60).stdout.split()[-1]


def numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def test_the_command_is_alone_and_its_code_comes_back(root: Path) -> None:
    left = "sleep 98765 & exec sleep 0.1"
    assert slurm_root("run", root, "--", "sh", "-c", left, timeout=60).returncode == 0
    assert slurm_root("run", root, "--", "sh", "-c", "exit 7", timeout=60).returncode == 7
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert b"sleep\x0098765\x00" not in commands
    assert str(root) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("tests", TESTS)
def test_the_cluster_tests_pass(tests: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-q", "-m", "slurm", "-k", LEFT_OUT, "-p", "no:cacheprovider", tests]
    done = slurm_root("run", root, "--", sys.executable, "-m", "pytest", *words, timeout=1200)
    tail = "\n".join(done.stdout.splitlines()[-150:])
    assert done.returncode == 0, tail
    passed, skipped = (counted(word, tail) for word in ("passed", "skipped"))
    assert passed, tail
    with capsys.disabled():
        print(f"\nSlurm {version_in(root)}: {passed} passed, {skipped} skipped of {tests}")


def counted(word: str, text: str) -> int:
    found = re.search(rf"(\d+) {word}", text.splitlines()[-1])
    return int(found.group(1)) if found else 0
