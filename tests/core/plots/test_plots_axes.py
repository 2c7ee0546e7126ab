"""Ticks: few, round, and covering what is drawn."""

from __future__ import annotations

import math

import pytest

from allranks.core.plots import axes


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.13, 0.42, [0.1, 0.2, 0.3, 0.4, 0.5]),
        (-3, 7, [-4, -2, 0, 2, 4, 6, 8]),
        (0, 1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
        (1e6, 3e6, [1e6, 1.5e6, 2e6, 2.5e6, 3e6]),
    ],
)
def test_ticks_are_round_and_cover_the_range(
    low: float, high: float, expected: list[float]
) -> None:
    assert axes.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (5, 5), (-2, -2), (1e-9, 1e-9), (1e300, 1e300), (5e-324, 1e-310), (-1e300, 1e300)],
)
def test_odd_ranges_have_ticks_around_them(low: float, high: float) -> None:
    marks = axes.ticks(low, high)
    assert 1 <= len(marks) < 9
    assert marks[0] <= low
    assert marks[-1] >= axes.clipped(high)


def test_logarithmic_ticks_are_powers_of_ten() -> None:
    assert axes.log_ticks(1, 10000) == pytest.approx([1, 10, 100, 1000, 10000])
    assert axes.log_ticks(3, 40) == pytest.approx([2, 5, 10, 20, 50])
    assert len(axes.log_ticks(1e-12, 1e12)) <= 9


def test_logarithmic_ticks_end_where_numbers_do() -> None:
    assert axes.log_ticks(1e-310, 1.7e308)[-1] == pytest.approx(1e300)
    axis = axes.logarithmic([1e-310, 1.0, 1.7e308], 0, 100)  # the first is as good as 0
    assert [axis.at(value) for value in (1.0, 1.7e308)] == pytest.approx([0, 100])


def test_few_values_are_the_ticks_of_a_logarithmic_axis() -> None:
    axis = axes.logarithmic([1, 2, 4, 8], 0, 300)
    assert list(axis.texts) == ["1", "2", "4", "8"]
    assert axis.at(4) == pytest.approx(200)


def test_a_logarithmic_axis_passes_over_what_has_no_logarithm() -> None:
    axis = axes.logarithmic([0, -1, math.nan, 10, 1000], 0, 100)
    assert axis.at(100) == pytest.approx(50)
    assert axes.logarithmic([], 0, 100).ticks


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (20, ["0 s", "5 s", "10 s", "15 s", "20 s"]),
        (45 * 60, ["0 s", "10 min", "20 min", "30 min", "40 min"]),
        (5 * 3600, ["0 s", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (6 * 86400, ["0 s", "1 d", "2 d", "3 d", "4 d", "5 d", "6 d"]),
    ],
)
def test_times_are_told_as_people_count(seconds: float, texts: list[str]) -> None:
    assert list(axes.time_axis([0, seconds], 0, 600).texts) == texts


def test_a_year_has_few_ticks() -> None:
    assert 2 <= len(axes.time_axis([0, 365 * 86400], 0, 600).ticks) <= 8


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9999, "9999"), (15000, "15k"), (2.5e6, "2.5M"), (0.25, "0.25"), (3e-5, "3e-5"),
     (-20000, "-20k"), (1.5e-4, "1.5e-4"), (7e12, "7T")],
)  # fmt: skip
def test_numbers_in_few_letters(value: float, text: str) -> None:
    assert axes.compact(value) == text


def test_the_ticks_of_one_axis_have_the_same_decimals() -> None:
    assert axes.tick_texts([0, 0.5, 1]) == ["0.0", "0.5", "1.0"]
    assert axes.tick_texts([0, 5000, 10000]) == ["0", "5000", "10k"]
