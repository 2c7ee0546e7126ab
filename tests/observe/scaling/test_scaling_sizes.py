"""What a user types: sizes, the option that varies, placeholders in arguments."""

from __future__ import annotations

import pytest

from allranks.errors import UsageError
from allranks.observe.scaling.sizes import (
    AXES,
    choose_axis,
    fill_placeholders,
    implied_kind,
    parse_sizes,
)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1-4", [1, 2, 3, 4]),
        ("4, 1,2", [1, 2, 4]),
        ("2,2,1-2", [1, 2]),
        ("8", [8]),
    ],
)
def test_sizes_are_sorted_and_each_is_there_once(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0,1", "4-1", "a", "1,,2", "1.5", "-2", "1-9999", "²"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sizes(text)


@pytest.mark.parametrize("text", ["1-100", "1-60,70-130", "1-99999999999"])
def test_too_many_sizes_are_told_with_the_limit(text: str) -> None:
    assert len(parse_sizes("1-60,1-64")) == 64
    with pytest.raises(UsageError, match="are more than 64 sizes"):
        parse_sizes(text)


def test_one_option_varies_and_the_others_are_values() -> None:
    choice = choose_axis({"nodes": "1,2", "gpus_per_node": "4", "time": "5m"})
    assert choice.axis is AXES["nodes"]
    assert choice.sizes == [1, 2]
    assert choice.values == {"gpus_per_node": "4", "time": "5m"}


def test_gpus_may_have_a_type() -> None:
    choice = choose_axis({"gpus_per_node": "A100:1,2,4", "nodes": "2"})
    assert choice.gpu_type == "A100"
    assert choice.sizes == [1, 2, 4]
    assert choice.values == {"nodes": "2"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "--procs 1,2,4"),
        ({"nprocs": "4"}, "--procs 1,4"),
        ({"nodes": "1"}, "--nodes 1,2,4"),
        ({"nodes": "1,2", "gpus_per_node": "1,2"}, "--nodes and --gpus-per-node"),
        ({"nodes": "1,2", "nprocs": "4"}, "--tasks-per-node"),
        ({"nodes": "A100:1,2"}, "1,2,4 or 1-4"),
    ],
)
def test_a_mistake_is_told_with_what_to_type(values: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose_axis(values)


def test_placeholders_follow_the_size() -> None:
    words = ("--n={ranks}", "{nodes}", "{share:256}", "x{times:32}y", '{"lr": 0.1}', "{rank}")
    assert fill_placeholders(words, ranks=4, nodes=2) == (
        "--n=4", "2", "64", "x128y", '{"lr": 0.1}', "{rank}",
    )  # fmt: skip


def test_a_share_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(UsageError, match="3 ranks; 255 or 258 can"):
        fill_placeholders(["{share:256}"], ranks=3, nodes=1)
    with pytest.raises(UsageError, match="whole number"):
        fill_placeholders(["{share:many}"], ranks=3, nodes=1)


def test_placeholders_tell_the_kind_of_scaling() -> None:
    assert implied_kind(["--batch", "{share:256}"]) == "strong"
    assert implied_kind(["{times:32}"]) == "weak"
    assert implied_kind(["{ranks}"]) is None
    assert implied_kind(["{share:256}", "{times:32}"]) is None
