"""Times, memory and GPUs as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.core.units import Gpus, format_memory, format_time, parse_memory, parse_time
from allranks.errors import UsageError

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 2 * HOUR),
        ("90m", 90 * MINUTE),
        ("90min", 90 * MINUTE),
        ("45s", 45),
        ("1d12h", DAY + 12 * HOUR),
        ("1d 2h 3m 4s", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ("2H", 2 * HOUR),
        (" 2h ", 2 * HOUR),
        ("15", 15 * MINUTE),
        ("15:30", 15 * MINUTE + 30),
        ("12:00:00", 12 * HOUR),
        ("0-03:00", 3 * HOUR),
        ("0-3", 3 * HOUR),
        ("2-01:02:03", 2 * DAY + HOUR + 2 * MINUTE + 3),
        ("100:00:00", 100 * HOUR),
    ],
)
def test_a_time_in_every_notation(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "soon", "2x", "h", "1:2:3:4", "-5", "1.5h", "2h 1d", "1-"]
)
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a time\. Write 2h, 90m"):
        parse_time(text)


@given(st.integers(0, 400 * DAY))
def test_a_time_survives_slurms_spelling(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


def test_times_are_written_with_days_only_where_there_are_any() -> None:
    assert format_time(2 * HOUR) == "02:00:00"
    assert format_time(DAY + 61) == "1-00:01:01"


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("64G", 64 * 1024),
        ("64g", 64 * 1024),
        ("64GB", 64 * 1024),
        ("64GiB", 64 * 1024),
        ("64 G", 64 * 1024),
        ("1.5T", 1536 * 1024),
        ("4000", 4000),
        ("512MB", 512),
        ("2048K", 2),
        ("0", 0),
    ],
)
def test_memory_in_every_notation(text: str, mebibytes: int) -> None:
    assert parse_memory(text) == mebibytes


@pytest.mark.parametrize("text", ["1K", "512K", "0.2M"])
def test_a_little_memory_is_not_zero_which_would_be_all_of_the_node(text: str) -> None:
    assert parse_memory(text) == 1


@pytest.mark.parametrize("text", ["", "much", "-1", "4X", "G", "1.G", "1 2G"])
def test_what_is_not_memory(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a memory size\. Write 64G"):
        parse_memory(text)


@given(st.integers(0, 1 << 32))
def test_memory_survives_slurms_spelling(mebibytes: int) -> None:
    assert parse_memory(format_memory(mebibytes)) == mebibytes


def test_memory_is_written_in_gibibytes_where_it_is_whole() -> None:
    assert format_memory(65536) == "64G"
    assert format_memory(65000) == "65000M"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("4", Gpus(4)),
        (4, Gpus(4)),
        (Gpus(2, "A100"), Gpus(2, "A100")),
        ("A100:2", Gpus(2, "A100")),
        ("gpu:4", Gpus(4)),
        ("gpu:A100:4", Gpus(4, "A100")),
        ("nvidia_a100_1g.5gb:1", Gpus(1, "nvidia_a100_1g.5gb")),
        ("0", Gpus(0)),
    ],
)
def test_gpus_in_every_notation(text: str | int | Gpus, gpus: Gpus) -> None:
    assert Gpus.parse(text) == gpus


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A100",
        "gpu",
        "gpu:",
        ":4",
        "a:b:4",
        "4:A100",
        "-1",
        "²",
        "a b:1",
        "a\n#SBATCH x:1",
        True,
    ],
)
def test_what_is_no_number_of_gpus(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a number of GPUs\. Write 4"):
        Gpus.parse(text)


@given(
    st.integers(0, 64), st.none() | st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True)
)
def test_gpus_survive_their_spelling(count: int, kind: str | None) -> None:
    assert Gpus.parse(str(Gpus(count, kind))) == Gpus(count, kind)
