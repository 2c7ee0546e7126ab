"""Numbers and texts as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from allranks.core import formatting as wording


@pytest.mark.parametrize(
    ("write", "given", "text"),
    [
        (wording.clock, 3723, "1:02:03"),
        (wording.clock, 3 * 86400 + 14706, "3d 04:05:06"),
        (wording.clock, -1, "0:00:00"),
        (wording.clock, math.nan, ""),
        (wording.clock, math.inf, ""),
        (wording.span, 45, "45 s"),
        (wording.span, -3.0, "0 s"),
        (wording.span, math.nan, ""),
        (wording.span, -math.inf, ""),
        (wording.span, 150, "2 min 30 s"),
        (wording.span, 599.6, "10 min"),
        (wording.span, 7500, "2 h 05 min"),
        (wording.span, 48 * 3600, "2 d"),
        (wording.span, 76 * 3600, "3 d 4 h"),
        (wording.step_time, 1.236, "1.24 s"),
        (wording.step_time, 0.2134, "213 ms"),
        (wording.step_time, 0.000062, "62 µs"),
        (wording.step_time, 0.0, "0 ms"),
        (wording.step_time, 412, "412 s"),
        (wording.step_time, 7200, "2 h"),
        (wording.step_time, None, ""),
        (wording.amount, 640, "640"),
        (wording.amount, 9999, "9999"),
        (wording.amount, 12_345, "12.3k"),
        (wording.amount, 999_900, "1M"),
        (wording.amount, 0.001, "0.001"),
        (wording.amount, math.inf, "inf"),
        (wording.three, 0.0043, "0.0043"),
        (wording.three, 0.00996, "0.01"),
        (wording.three, -0.001, "-0.001"),
        (wording.three, -0.0, "0"),
        (wording.three, 0.996, "1"),
        (wording.three, 1e-7, "1e-07"),
        (wording.rate, 2.13e9, "2.13 GB/s"),
        (wording.rate, 999_900, "1 MB/s"),
        (wording.rate, 12, "12 B/s"),
        (wording.rate, None, ""),
        (wording.size, 61.2 * 2**30, "61.2 GiB"),
        (wording.size, 640 * 2**20, "640 MiB"),
        (wording.size, 12, "12 B"),
        (wording.percent, 0.344, "34 %"),
        (wording.percent, 0.004, "<1 %"),
        (wording.percent, 0.0, "0 %"),
        (wording.percent, 0.997, "99 %"),
        (wording.percent, 1.0, "100 %"),
        (wording.percent, 1.004, "100 %"),
        (wording.percent, math.nan, ""),
        (wording.value, 0.43123, "0.4312"),
        (wording.value, 9999.4, "9999"),
        (wording.value, 9999.6, "10000"),
        (wording.value, 179736.4, "179736"),
        (wording.value, 999_999.7, "1.00e+06"),
        (wording.value, 2.97e-4, "2.97e-04"),
        (wording.value, math.nan, "NaN"),
        (wording.value, -math.inf, "-inf"),
        (wording.value, -0.0, "0"),
        (wording.amount, math.nan, "NaN"),
    ],
)
def test_numbers(write: Callable[[float | None], str], given: float | None, text: str) -> None:
    assert write(given) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07name", "name"),
        ("\x1b]8;;unterminated", ""),
        ("one\rtwo\nthree\x07", "onetwothree"),
        ("a\tb", "a    b"),
        ("a\u202eb\u200bc\ufeff", "abc"),
        ("\x9b31mc1", "31mc1"),
    ],
)
def test_what_is_other_peoples_text(given: str, text: str) -> None:
    assert wording.clean(given) == text


def test_a_text_of_several_lines() -> None:
    text = " first\x1b[31m\n\n  second\tword\u202e\r\n"
    assert wording.one_line(text) == "first second word"
    assert wording.clean_lines(text) == " first\n\n  second    word\n"


def test_narrow_columns_have_no_space_before_the_unit() -> None:
    assert wording.percent(0.344, gap="") == "34%"
    assert wording.percent(0.001, gap="") == "<1%"
    assert wording.rate(4.1e6, gap="") == "4.1MB/s"
