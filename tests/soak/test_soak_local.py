"""Trainings ended at random moments on this machine end as if nothing had happened, bit by bit.

A dozen ends belong to every test run; two hundred and more to ``make test-soak``, whose table tells what
they cost.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from soak_rig import ENDS, Tallies, Tally, Training, differences, endure, result

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3600)]
LANES = [("single", 1, 0), ("ddp", 2, 0), ("fsdp", 2, 0), ("ddp", 2, 2)]
"""Strategy, ranks, loader workers."""


def _compare(training: Training, right: dict[str, object], ends: list[str], met: Tallies) -> None:
    found = differences(right, result(training.run))
    for kind in ends if found else ():
        met.setdefault(kind, Tally()).wrong += 1
    assert not found, "\n".join([*ends, *found[:20], training.said[-3000:]])


def _undisturbed(folder: Path, env: dict[str, str], words: list[str], nprocs: int) -> Training:
    training = Training(folder / "undisturbed", env, words, nprocs)
    training.start()
    assert training.wait() == 0, training.said
    return training


@pytest.mark.parametrize(("strategy", "nprocs", "workers"), LANES[1:2])  # the rest: many ends
def test_a_few_ends(
    strategy: str, nprocs: int, workers: int, clean_env: dict[str, str], tmp_path: Path,
    dice: random.Random, tallies: Tallies,
) -> None:  # fmt: skip
    words = [strategy, "12", "0.03", str(workers)]
    right = result(_undisturbed(tmp_path, clean_env, words, nprocs).run)
    ends = dice.sample([*ENDS], 4)
    training = Training(tmp_path / "disturbed", clean_env, words, nprocs)
    assert endure(training, [*ends], dice, tallies)
    _compare(training, right, ends, tallies)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "nprocs", "workers"), LANES)
def test_many_ends(
    strategy: str, nprocs: int, workers: int, clean_env: dict[str, str], tmp_path: Path,
    dice: random.Random, tallies: Tallies,
) -> None:  # fmt: skip
    words = [strategy, "30", "0.02", str(workers)]
    right = result(_undisturbed(tmp_path, clean_env, words, nprocs).run)
    left, number = -(-int(os.environ.get("ALLRANKS_SOAK_KILLS", "220")) // len(LANES)), 0
    while left > 0:
        number += 1
        ends = [dice.choice([*ENDS]) for _ in range(min(left, 9))]
        training = Training(tmp_path / f"disturbed-{number}", clean_env, words, nprocs)
        done = endure(training, [*ends], dice, tallies)
        assert done, f"it ended before it could be ended: {ends}"
        left -= done
        _compare(training, right, ends, tallies)
