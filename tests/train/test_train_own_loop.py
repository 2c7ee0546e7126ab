"""`prepare`: one's own loop on one rank and several is what the Trainer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_script_rig import Found, apart, once, results, run, shared_folder

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # one fixture does all the training

EXACT = 1e-10
EVERY = pytest.mark.parametrize("ranks", ["1", "2"])


def _all(folder: Path) -> dict[str, Found]:
    return {str(ranks): run(folder, ranks, "loop") for ranks in (1, 2)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    made: dict[str, Found] = once(shared_folder(tmp_path_factory, "own-loop"), _all)
    return made


@pytest.mark.parametrize("how", ["plain", "accumulated", "clipped", "all"])
@pytest.mark.parametrize(("ranks", "way"), [("1", "single"), ("2", "ddp"), ("2", "fsdp")])
def test_the_loop_equals_the_trainer(
    found: dict[str, Found], ranks: str, way: str, how: str
) -> None:
    """21 samples in batches of 4: an uneven last batch, and a last window of 4 and 1."""
    truth = results(found["1"], f"single trainer {how}")[0]
    loop = results(found[ranks], f"{way} loop {how}")
    assert loop[0]["weights"].keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert apart(truth["weights"], loop[0]["weights"]) < EXACT
    assert {one["steps"] for one in loop} == {truth["steps"]}
    assert apart(truth, results(found[ranks], f"{way} trainer {how}")[0]) < EXACT


@EVERY
def test_evaluation_loaders_give_each_sample_once(found: dict[str, Found], ranks: str) -> None:
    truth = results(found["1"], "evaluation")[0]
    for one in results(found[ranks], "evaluation"):
        assert one["samples"] == 7
        assert one["loss"] == pytest.approx(truth["loss"], abs=EXACT)
        assert one["lengths"] == [4, 2]


@EVERY
def test_bf16_computes_short_and_keeps_long(found: dict[str, Found], ranks: str) -> None:
    first = results(found[ranks], "bf16")[0]
    assert first == {"outputs": ["torch.bfloat16"], "weights": ["torch.float32"]}


@EVERY
def test_a_loop_left_early_starts_its_next_window_afresh(
    found: dict[str, Found], ranks: str
) -> None:
    for one in results(found[ranks], "left early"):
        assert one["stepped"] == [[False, True, False], [False, True, False, True]]


@EVERY
def test_batches_from_elsewhere_make_steps_too(found: dict[str, Found], ranks: str) -> None:
    assert set(results(found[ranks], "without its loader")) == {"True"}


@EVERY
def test_what_comes_back_is_what_was_given(found: dict[str, Found], ranks: str) -> None:
    names = ["inner.bias", "inner.weight"]
    expected: dict[str, Any] = {
        "names": [names, names], "note": "mine", "length": 2, "size": True, "optimizer": "SGD",
    }  # fmt: skip
    first, *others = results(found[ranks], "pieces")
    assert first == expected
    for other in others:  # the whole state is rank 0's
        assert other == {**expected, "names": [names, []]}
