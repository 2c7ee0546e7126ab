"""Disks that fail, checkpoints that rot, a second writer: never a wrong resumption, never an endless loop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from soak_rig import Training, asked_to_end, command, differences, result

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
WORDS = ["ddp", "10", "0.03", "0"]
FAULTS = Path(__file__).with_name("faults")


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed training comes to."""
    folder = tmp_path_factory.mktemp("right")
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    training = Training(folder / "run", env, WORDS, 2)
    training.start()
    assert training.wait() == 0, training.said
    return result(training.run)


def _to_step(training: Training, step: int) -> None:
    """Train on until a checkpoint of this step, or a later one, is there."""
    assert training.until(lambda: (training.progress().get("saved_step") or 0) >= step)


def _published(training: Training) -> list[Path]:
    return sorted(training.run.glob("checkpoints/step-*"))


# -- what rots after the fact


def _cut(shard: Path, dice: random.Random) -> None:
    os.truncate(shard, shard.stat().st_size - 7)


def _flip(shard: Path, dice: random.Random) -> None:
    data = bytearray(shard.read_bytes())
    data[dice.randrange(len(data) // 2, len(data))] ^= 1 << dice.randrange(8)
    shard.write_bytes(data)


def _lose(shard: Path, dice: random.Random) -> None:
    shard.unlink()


def _lose_manifest(shard: Path, dice: random.Random) -> None:
    shard.with_name("manifest.json").unlink()


def _scramble_manifest(shard: Path, dice: random.Random) -> None:
    shard.with_name("manifest.json").write_text('{"format": 2, "step"')


ROT = [
    pytest.param(_flip, id="flip"),
    *[
        pytest.param(each, id=name, marks=pytest.mark.slow)
        for name, each in (
            ("cut", _cut),
            ("lost", _lose),
            ("manifest lost", _lose_manifest),
            ("manifest scrambled", _scramble_manifest),
        )
    ],
]


@pytest.mark.parametrize("rot", ROT)
def test_the_checkpoint_before_a_broken_one_is_used(
    rot: Callable[[Path, random.Random], None], right: dict[str, Any], clean_env: dict[str, str],
    tmp_path: Path, dice: random.Random,
) -> None:  # fmt: skip
    training = Training(tmp_path, clean_env, WORDS, 2)
    training.start()
    _to_step(training, 12)
    asked_to_end(training, dice)
    newest = _published(training)[-1]
    rot(sorted(newest.glob("rank-*.safetensors"))[0], dice)
    training.resume()
    assert training.wait() == 0, training.said
    assert not differences(right, result(training.run)), training.said
    kept = training.run / "checkpoints" / "quarantine"
    assert (kept / newest.name).is_dir(), training.said
    assert (kept / f"{newest.name}.txt").read_text().strip()
    assert "quarantine" in training.said


@pytest.mark.slow
def test_all_broken_is_told_and_nothing_is_thrown_away(
    clean_env: dict[str, str], tmp_path: Path, dice: random.Random
) -> None:
    training = Training(tmp_path, clean_env, WORDS, 2)
    training.start()
    _to_step(training, 3)
    command(training, dice)
    broken = _published(training)
    for checkpoint in broken:
        _flip(next(checkpoint.glob("rank-*.safetensors")), dice)
    for _ in range(2):
        training.resume()
        assert training.wait() != 0, training.said
        assert "is valid" in training.said or "is broken" in training.said
        assert "TrainConfig(resume=False)" in training.said
        assert _published(training) == broken


# -- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "allranks-test", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_leaves_the_old_ones_and_the_training(
    small_disk: Path, right: dict[str, Any], clean_env: dict[str, str]
) -> None:
    training = Training(small_disk, clean_env, WORDS, 2)
    training.start()
    _to_step(training, 6)
    ballast = small_disk / "ballast"
    with open(ballast, "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass
    before = _published(training)
    reached = training.progress()["saved_step"]
    assert training.until(lambda: "WARNING" in training.said)
    assert set(before) >= set(_published(training)) != set()
    ballast.unlink()
    _to_step(training, reached + 3)
    assert training.wait() == 0, training.said
    assert not differences(right, result(training.run)), training.said


@pytest.mark.slow
def test_a_disk_that_fails_at_times(
    right: dict[str, Any], clean_env: dict[str, str], tmp_path: Path
) -> None:
    env = {**clean_env, "PYTHONPATH": str(FAULTS), "ALLRANKS_TEST_FSYNC": "EIO 4 9"}
    training = Training(tmp_path, env, WORDS, 2)
    training.start()
    assert training.wait() == 0, training.said
    assert "WARNING" in training.said
    assert "Input/output error" in training.said
    assert not differences(right, result(training.run)), training.said


@pytest.mark.slow
def test_a_slow_disk(
    right: dict[str, Any], clean_env: dict[str, str], tmp_path: Path, dice: random.Random
) -> None:
    env = {**clean_env, "PYTHONPATH": str(FAULTS), "ALLRANKS_TEST_FSYNC": "slow 0.2"}
    training = Training(tmp_path, env, WORDS, 2)
    training.start()
    assert training.until(training.under_way)
    command(training, dice)
    training.resume()
    assert training.wait() == 0, training.said
    assert not differences(right, result(training.run)), training.said


def test_two_attempts_of_one_run(
    right: dict[str, Any], clean_env: dict[str, str], tmp_path: Path
) -> None:
    """The first sleeps through its own replacement, as on a node that is lost and comes back."""
    first = Training(tmp_path, clean_env, WORDS, 2)
    first.start()
    _to_step(first, 6)
    sleeping = first.pids()
    assert first.process is not None
    for pid in (first.process.pid, *sleeping):
        os.kill(pid, signal.SIGSTOP)
    second = Training(tmp_path, clean_env, WORDS, 2)
    about = first.run / "run.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "host": "elsewhere"}))
    second._command(["resume", "--force", first.run.name])
    assert second.until(lambda: (second.progress().get("saved_step") or 0) > 6)
    for pid in (*sleeping, first.process.pid):
        os.kill(pid, signal.SIGCONT)
    assert second.wait() == 0, second.said
    assert first.wait() != 0, first.said
    assert "took over" in first.said or "taken over" in first.said, first.said
    assert not differences(right, result(second.run)), second.said
