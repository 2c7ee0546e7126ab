"""Several ranks against one: uneven data, streams, own steps, stopping, checkpoints, logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ranks_script_rig import Found, apart, once, results, run, shared_folder

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # one fixture does all the training

EXACT = 1e-10


def _all(folder: Path) -> dict[str, Found]:
    """Two ranks first: one rank resumes what they saved."""
    two = run(folder, 2, "data", "steps", "control", "resume")
    one = run(folder, 1, "data", "steps", "control", "resume")
    return {"1": one, "2": two, "3": run(folder, 3, "data")}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    made: dict[str, Found] = once(shared_folder(tmp_path_factory, "ranks"), _all)
    return made


def alike(found: dict[str, Found], ranks: str, name: str, base: str = "") -> list[Any]:
    """The ranks' results, after rank 0's was compared with that of one process alone."""
    truth = results(found["1"], base or re.sub("^(ddp|fsdp)", "single", name))[0]
    every = results(found[ranks], name)
    assert apart(truth, every[0]) < EXACT
    return every


SIZES = ("1 1", "2 5", "5 2", "7 9", "13 4")
WAYS = [("2", "ddp"), ("2", "fsdp"), ("3", "ddp"), ("3", "fsdp")]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("ranks", "way"), WAYS)
def test_uneven_data(found: dict[str, Found], ranks: str, way: str, sizes: str) -> None:
    """Losses, metrics, validation, weights and the order of predictions; fewer samples than ranks."""
    every = alike(found, ranks, f"{way} uneven {sizes}")
    for other in every[1:]:
        assert apart({**every[0], "weights": {}}, {**other, "weights": {}}) == 0


@pytest.mark.parametrize(("ranks", "way"), WAYS)
@pytest.mark.parametrize("kind", ["odd accumulation", "average"])
def test_windows_and_averages(found: dict[str, Found], ranks: str, way: str, kind: str) -> None:
    alike(found, ranks, f"{way} {kind}")


@pytest.mark.parametrize("ranks", ["2", "3"])
@pytest.mark.parametrize("kind", ["alike", "dealt", "accumulated"])
def test_a_stream_that_all_ranks_read(found: dict[str, Found], ranks: str, kind: str) -> None:
    """Dealt out in turn it is one stream of larger batches; a rank that is done repeats."""
    name = f"stream {kind} {ranks}"
    truth, every = results(found["1"], name)[0], results(found[ranks], name)
    assert apart(truth["weights"], every[0]["weights"]) < EXACT
    assert {one["steps"] for one in every} == {truth["steps"]}
    for one in every:
        assert apart(truth["losses"], one["losses"]) < EXACT
    assert set(truth["seen"]) == {x for one in every for x in one["seen"]}


@pytest.mark.parametrize("ranks", ["2", "3"])
@pytest.mark.parametrize("kind", ["by rank", "by rank auto", "at rest"])
def test_a_stream_that_the_user_shares_out(found: dict[str, Found], ranks: str, kind: str) -> None:
    """Ranks with fewer samples keep in step with those that have more."""
    truth = results(found["1"], f"stream {kind}")[0]
    every = results(found[ranks], f"stream {kind}")
    assert {one["steps"] for one in every} == {2 * 6}  # rank 0 has 11 samples in batches of 2
    assert set(truth["seen"]) == {x for one in every for x in one["seen"]}
    assert not set(every[0]["seen"]) & set(every[1]["seen"])
    for one in every[1:]:
        assert one["losses"] == every[0]["losses"]
    if kind == "at rest":
        assert every[0]["loss"] == pytest.approx(truth["loss"], abs=EXACT)


@pytest.mark.parametrize("ranks", ["2", "3"])
def test_a_stream_is_validated_and_predicted(found: dict[str, Found], ranks: str) -> None:
    for one in alike(found, ranks, "stream validated"):
        assert len(one["predict"]) == 17


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["two optimizers", "two optimizers clipped"])
def test_several_optimizers(found: dict[str, Found], way: str, kind: str) -> None:
    alike(found, "2", f"{way} {kind}")


def test_an_own_step_keeps_the_ranks_equal(found: dict[str, Found]) -> None:
    assert apart(*(one["own"] for one in alike(found, "2", "ddp own step"))) == 0
    uneven = results(found["2"], "own step uneven")
    assert apart(*(one["own"] for one in uneven)) == 0
    for name in ("losses", "weights"):
        truth = results(found["1"], "single own step")[0][name]
        assert apart(truth, results(found["2"], "fsdp own step")[0][name]) < EXACT


def test_gradient_free(found: dict[str, Found]) -> None:
    """Rank 0 asks and is told the loss over all samples; the others follow."""
    truth, (first, second) = (
        results(found["1"], "gradient-free")[0],
        results(found["2"], "gradient-free"),
    )
    assert apart(truth["told"], first["told"]) < EXACT
    assert second["told"] == []
    assert first["own"] == second["own"] == pytest.approx(truth["own"])


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_loss_with_parameters_of_its_own(found: dict[str, Found], way: str) -> None:
    """They are trained with the model's: averaged, or sharded, and whole at validation."""
    alike(found, "2", f"{way} loss with parameters")


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_the_tensors_of_a_loss_follow_the_model(found: dict[str, Found], ranks: str) -> None:
    """A weighted mean differs over ranks, but in the first batch every rank must get that far."""
    assert len(results(found[ranks], "loss with weights")[0]) == 4


def test_warmup_and_schedule_count_steps_of_all_ranks(found: dict[str, Found]) -> None:
    alike(found, "2", "warm-up and schedule")


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_early_stopping(found: dict[str, Found], way: str) -> None:
    for one in alike(found, "2", f"{way} early stopping"):
        assert one["epoch"] == 4
        assert "val_loss was measured 3 times in a row without progress" in one["reason"]


def test_limits(found: dict[str, Found]) -> None:
    assert {(one["step"], one["epoch"]) for one in alike(found, "2", "max_steps")} == {(7, 3)}
    timed = results(found["2"], "max_time")
    assert {one["step"] for one in timed} == {timed[0]["step"]}
    assert any("max_time=1s is over" in one["reason"] for one in timed)


@pytest.mark.parametrize("rank", ["first", "last"])
def test_stop_on_one_rank_ends_all_at_one_step(found: dict[str, Found], rank: str) -> None:
    """Asked for at step 7 of the first of two epochs of 50."""
    one, other = every = results(found["2"], f"stop on the {rank} rank")
    assert 7 <= one["step"] == other["step"] <= 50
    assert sorted(one["reason"] for one in every) == ["another rank asked to stop", "enough"]


def test_stop_at_the_end_of_an_epoch(found: dict[str, Found]) -> None:
    assert results(found["2"], "stop at an epoch's end") == [{"step": 3, "epoch": 1}] * 2


def test_the_start_tells_batch_and_rate_on_rank_0(found: dict[str, Found]) -> None:
    first, second = results(found["2"], "banner")
    told = {kind: " ".join(text.split()) for kind, text in first.items()}
    assert "batch 12 (6 per rank × 2) × 2 accumulated = 24 per step" in told["per_rank"]
    assert "learning rate 0.04 (linear scaling), 2 steps" in told["per_rank"]
    assert "batch 6 (3 per rank × 2) × 2 accumulated = 12 per step" in told["global"]
    assert "learning rate 0.02 (linear scaling), 3 steps" in told["global"]
    for text in told.values():
        assert "2 ranks on 1 node over gloo" in text
        assert "ddp over 2 ranks" in text
        assert "25 samples over 2 ranks: each was seen exactly once." in text
    assert second == {"per_rank": "", "global": ""}


@pytest.mark.parametrize("kind", ["two trainers", "fit twice", "test before fit"])
def test_one_after_the_other(found: dict[str, Found], kind: str) -> None:
    alike(found, "2", kind)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_the_rate_is_scaled_once(found: dict[str, Found], ranks: str) -> None:
    """From 0.01 by the accumulation of 2; a second fit on the same batch changes nothing."""
    for rate in results(found[ranks], "rate after two fits"):
        assert rate == pytest.approx(0.02)


def test_every_hook_runs_on_every_rank(found: dict[str, Found]) -> None:
    first, second = results(found["2"], "hooks")
    assert first.count("checkpoint") == 3  # two steps, and the end, which is the best
    assert first == second


def test_only_rank_0_writes_and_each_step_once(found: dict[str, Found]) -> None:
    for ranks in ("1", "2"):
        seen = results(found[ranks], "log of steps")
        assert seen[0]["train"] == [2, 4, 6, 7, 8, 10, 12, 14]
        assert seen[0]["val"] == seen[0]["epoch"] == [1, 2]
        assert [one["loggers"] for one in seen] == [1, 0][: int(ranks)]
    folders = results(found["2"], "run folders")[0]
    assert sum(name.startswith("ranks_script") for name in folders) == 1  # of 13 Trainers
    assert sum(name.startswith("logged") for name in folders) == 1


def test_a_decision_is_rank_0s_where_ranks_see_different_values(found: dict[str, Found]) -> None:
    first, second = results(found["2"], "a metric that ranks see differently")
    assert first == second == results(found["1"], "a metric that ranks see differently")[0]
    assert first["epoch"] == 3


def test_metrics_that_differ_over_ranks_are_told(found: dict[str, Found]) -> None:
    for seen in found["2"]["other metrics on another rank"]:
        assert "Rank 1 measures loss, of_rank_1, rank 0 loss, of_rank_0" in seen["error"]


def test_a_mistake_that_rank_0_finds_is_told_on_every_rank(found: dict[str, Found]) -> None:
    errors = [seen["error"] for seen in found["2"]["no checkpoint"]]
    assert len(errors) == 2
    assert all("resume='nowhere': there is no such folder" in error for error in errors)


def test_more_ranks_cannot_come_later(found: dict[str, Found]) -> None:
    for one in found["2"]["too many ranks"]:
        assert "nprocs=7 was asked for, but 2 ranks are running" in one["error"]


RESUMED = [
    (ranks, f"{way} from {saved}")
    for ranks, ways in (("1", ["single"]), ("2", ["ddp", "fsdp"]))
    for way in ways
    for saved in ("ddp-2", "fsdp-2")
]


@pytest.mark.parametrize(("ranks", "name"), RESUMED)
def test_resumed_in_the_middle_of_an_epoch(found: dict[str, Found], ranks: str, name: str) -> None:
    """By other ranks and another strategy: as if nothing had happened, down to patience's counter."""
    _same_end(results(found["1"], "single whole")[0], results(found[ranks], name)[0], first=10)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_resumed_with_accumulation(found: dict[str, Found], ranks: str) -> None:
    whole = results(found[ranks], "accumulated whole")[0]
    _same_end(whole, results(found[ranks], "accumulated resumed")[0], first=5)


def _same_end(whole: Any, rest: Any, first: int) -> None:
    assert rest["first"] == first
    for name in ("losses", "val"):
        assert apart(whole[name][-len(rest[name]) :], rest[name]) < EXACT
    assert len(rest["losses"]) == len(whole["losses"]) - first + 1
    for name in ("weights", "averaged", "rate", "waited", "epoch", "step"):
        assert apart(whole[name], rest[name]) < EXACT, name


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("saved", ["epoch-2", "step-8"])
def test_resumed_at_an_epochs_last_step(found: dict[str, Found], ranks: str, saved: str) -> None:
    """A schedule per epoch goes on where it was, whichever checkpoint of that step is taken."""
    rates = results(found[ranks], "schedule")[0]
    assert rates["whole"] == pytest.approx([0.05, 0.025, 0.0125, 0.00625])
    assert rates[saved][-2:] == pytest.approx(rates["whole"][2:])


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_resumed_stream_repeats_no_epoch(found: dict[str, Found], ranks: str) -> None:
    seen = results(found[ranks], "stream")[0]
    assert apart(seen["whole"], seen["parts"]) < EXACT
    assert apart(*seen["weights"]) < EXACT
    assert seen["looks"] == {"whole": [1, 2, 3], "half": [1, 2], "rest": [3]}
