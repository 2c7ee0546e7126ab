"""N ranks must equal one rank: same losses, same weights, for every strategy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks_script_rig import once, shared_folder

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # one fixture does all the training

SCRIPT = Path(__file__).with_name("truth_script.py")
Curves = Callable[[int], dict[str, dict[str, Any]]]
KINDS = ("", " clipped", " accumulate", " ema", " fp32")


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    """Every way of training with so many ranks, by name; made once, whichever worker asks first."""

    def made(ranks: int) -> dict[str, dict[str, Any]]:
        folder = shared_folder(tmp_path_factory, f"truth-{ranks}")
        return {row["name"]: row for row in once(folder, partial(_all_curves, ranks))}

    return made


def _all_curves(ranks: int, folder: Path) -> list[dict[str, Any]]:
    """One group of processes does them all."""
    out = folder / "curves.json"
    command = [sys.executable, str(SCRIPT), str(ranks), str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    made: list[dict[str, Any]] = json.loads(out.read_text())
    return made


def _apart(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


WAYS = [
    # Four processes on two cores are slow.
    pytest.param(ranks, strategy, kind, marks=pytest.mark.slow if ranks == 4 else ())
    for ranks in (1, 2, 4)
    for strategy in ("ddp", "fsdp")
    for kind in (KINDS if ranks < 4 else ("", " accumulate"))
]


@pytest.mark.parametrize(("ranks", "strategy", "kind"), WAYS)
def test_every_way_gives_the_same_numbers(
    curves: Curves, ranks: int, strategy: str, kind: str
) -> None:
    tolerance = 2e-5 if kind == " fp32" else 1e-10
    truth, way = curves(1)[f"single{kind}"], curves(ranks)[f"{strategy}{kind}"]
    assert len(truth["losses"]) == 3 * 7
    assert _apart(truth["losses"], way["losses"]) < tolerance
    assert truth["weights"].keys() == way["weights"].keys()
    for name, values in truth["weights"].items():
        assert _apart(values, way["weights"][name]) < tolerance, name
    assert abs(truth["test"] - way["test"]) < tolerance
    assert _apart(truth["predict"], way["predict"]) < tolerance * 10


def test_accumulation_equals_the_large_batch(
    curves: Curves,
) -> None:
    whole, parts = curves(1)["single"], curves(1)["single accumulate"]
    assert _apart(whole["losses"], parts["losses"]) < 1e-10
    for name, values in whole["weights"].items():
        assert _apart(values, parts["weights"][name]) < 1e-10, name


def test_training_does_train(curves: Curves) -> None:
    losses = curves(2)["fsdp"]["losses"]
    assert sum(losses[-7:-1]) < 0.8 * sum(losses[:6])  # without the small last batches
