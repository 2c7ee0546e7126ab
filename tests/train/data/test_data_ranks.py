"""Streams, samplers and the audit over real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import data_ranks

    folder: Path = tmp_path_factory.mktemp(f"ranks{request.param}")
    return data_ranks.run(request.param, folder)


def samples(found: list[Any]) -> list[float]:
    return sorted(value for one in found for value in one["samples"])


def weights_are_right(found: list[Any]) -> bool:
    """In every step the weights sum to the number of ranks, and counts to the total."""
    steps = list(zip(*(one["weights"] for one in found), strict=True))
    for step in steps:
        if any(weight is None for weight in step):
            assert all(weight is None for weight in step)
            continue
        assert sum(count for count, _, _ in step) == step[0][2]
        assert sum(weight for _, weight, _ in step) == pytest.approx(len(found))
        assert all(w == pytest.approx(c * len(found) / t) for c, w, t in step)
    return bool(steps)


@pytest.mark.parametrize(
    "name", ["unsharded_auto", "plain_list", "stream_workers", "global_stream"]
)
def test_a_stream_that_all_ranks_read_is_sharded(ranks: Any, name: str) -> None:
    found = ranks[name]
    number = {"unsharded_auto": 22, "plain_list": 15, "stream_workers": 12, "global_stream": 24}[
        name
    ]
    assert samples(found) == list(range(number))
    assert weights_are_right(found)
    assert all(one["audit"].ok for one in found)
    assert any("batches in turn" in note for note in found[0]["notes"])


def test_batches_of_one_size_become_full_after_the_first(ranks: Any) -> None:
    for one in ranks["plain_list"]:
        assert one["weights"][0] == (3, 1.0, 3 * len(ranks["plain_list"]))
        assert one["weights"][1] is None or len(ranks["plain_list"]) == 3


def test_a_shuffled_stream_is_read_alike_by_all_ranks(ranks: Any) -> None:
    for epoch in (0, 1):
        assert samples([one[epoch] for one in ranks["shuffled_auto"]]) == list(range(30))
    first, second = ranks["shuffled_auto"][0]
    assert first["samples"] != second["samples"]


def test_an_unshared_stream_is_named(ranks: Any) -> None:
    for one in ranks["unsharded_left"]:
        assert not one["audit"].ok
        assert "read the same samples" in one["audit"].message
        assert "shard_iterable=True" in one["audit"].message


def test_a_stream_that_shares_itself_is_left_alone(ranks: Any) -> None:
    found = ranks["sharded_by_user"]
    assert samples(found) == list(range(40))
    assert found[1]["samples"][:2] == [1, 1 + len(found)]
    assert found[0]["audit"].ok
    assert weights_are_right(found)


def test_a_rank_that_ran_out_repeats_with_weight_0(ranks: Any) -> None:
    found = ranks["uneven"]
    assert weights_are_right(found)
    assert [len(one["weights"]) for one in found] == [6] * len(found)
    assert found[1]["weights"][3:] == [(0, 0.0, 2), (0, 0.0, 2), (0, 0.0, 1)]
    assert found[0]["weights"][5] == (1, len(found), 1)
    assert "rank 1 had 3 batches fewer and repeated its last one" in found[0]["audit"].message
    assert found[0]["audit"].ok


def test_a_rank_without_any_batch_is_an_error_on_all(ranks: Any) -> None:
    for text in ranks["one_rank_empty"]:
        assert "Rank 1 got no batch" in text


def test_a_generator_cannot_be_read_twice(ranks: Any) -> None:
    for text in ranks["generator_twice"]:
        assert "can be read only once" in text


def test_a_stream_resumes(ranks: Any) -> None:
    for whole, rest in ranks["stream_skip"]:
        assert rest["samples"] == whole["samples"][4:]
        assert rest["weights"] == whole["weights"][2:]


def test_other_ranks_go_on_with_a_shared_stream(ranks: Any) -> None:
    found = ranks["stream_resumed"]
    assert samples([seen for seen, _ in found]) == [float(number) for number in range(6, 24)]
    assert {done for _, done in found} == {3 + len(found)}


def test_items_that_are_batches_are_shared_by_index(ranks: Any) -> None:
    found = ranks["unbatched"]
    assert samples(found) == sorted(float(i) for i in range(5) for _ in range(i + 1))
    assert weights_are_right(found)


def test_map_style_is_audited_over_ranks(ranks: Any) -> None:
    found = ranks["map_style"]
    assert samples(found) == list(range(23))
    assert weights_are_right(found)
    assert found[0]["audit"].ok
    assert "23 samples" in found[0]["audit"].message


def test_a_weighted_sampler_draws_the_same_on_all_ranks(ranks: Any) -> None:
    found = ranks["weighted"]
    assert len(samples(found)) == 20
    assert len(set(samples(found))) < 20  # with replacement
    assert found[0]["audit"].ok


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sampler_by_rank", "The sampler returns other indices on rank 1"),
        ("unseeded_split", "hold different parts of the dataset"),
        ("other_length", "10 samples on rank 0 and 11 on rank 1"),
    ],
)
def test_a_mistake_that_depends_on_the_rank_is_an_error(ranks: Any, name: str, text: str) -> None:
    for said in ranks[name]:
        assert said.startswith("UsageError")
        assert text in said


def test_other_contents_are_reported(ranks: Any) -> None:
    for one in ranks["other_contents"]:
        assert not one["audit"].ok
        assert "different samples" in one["audit"].message


def test_augmentation_is_no_mistake(ranks: Any) -> None:
    found = ranks["augmented"]
    assert sorted(int(value) for value in samples(found)) == list(range(8))
    assert all(one["audit"].ok for one in found)


def test_infinite_tensors_are_shared_out(ranks: Any) -> None:
    steps = [[value for batch in group for value in batch] for group in zip(
        *(batches for batches, _ in ranks["infinite"]), strict=True)]  # fmt: skip
    flat = [value for step in steps for value in step]
    assert sorted(flat[:10]) == list(range(10))  # the first pass is a permutation, over all ranks
    assert all(report.ok for _, report in ranks["infinite"])


def test_a_dict_of_streams_keeps_in_step(ranks: Any) -> None:
    found = ranks["dict_of_streams"]
    assert len({len(one) for one in found}) == 1
    assert sorted(value for one in found for batch in one for value in batch) == list(range(24))
