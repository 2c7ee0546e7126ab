"""Bars, numbers, keys and what they change."""

from __future__ import annotations

import math

import pytest

from allranks.observe.top.footer import ViewSettings
from allranks.observe.top.terminal import KeyReader
from allranks.observe.top.text_layout import (
    ASCII,
    BLOCKS,
    Column,
    LinePiece,
    bar,
    fit,
    glyphs_for,
    memory,
    percent,
    sparkline,
    stacked_bar,
    table,
    wrap,
)


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "░░░░"), (0.001, "▏░░░"), (0.5, "██░░"), (0.53125, "██▏░"), (1.0, "████"), (7, "████")],
)
def test_a_bar(share: float, drawn: str) -> None:
    assert bar(share, 4, "").plain == drawn


def test_a_bar_of_nothing_known_is_empty_space() -> None:
    assert bar(None, 4, "").plain == bar(math.nan, 4, "").plain == "    "
    assert bar(0.5, 4, "", ASCII).plain == "##.."
    assert bar(0.5, -1, "").plain == ""


def test_a_stacked_bar_is_as_wide_as_asked_for() -> None:
    parts = {"data": 1.0, "forward": 1.0, "communication": 1.0, "other": math.nan}
    for width in range(1, 50):
        assert len(stacked_bar(parts, width).plain) == width
    assert stacked_bar(parts, 6).plain == "ddffcc"
    assert stacked_bar({"data": 0.0}, 6).plain == ""


def test_a_curve_goes_evenly_along_its_steps() -> None:
    points = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (100.0, 7.0)]
    assert sparkline(points, 4) == "▁▁▁█"
    assert sparkline([(float(x), float(x)) for x in range(8)], 8) == BLOCKS.levels
    assert len(sparkline([(float(x), 1.0) for x in range(1000)], 20)) == 20


def test_a_curve_survives_numbers_that_are_none() -> None:
    assert sparkline([(0.0, math.nan), (1.0, 1.0), (2.0, 2.0), (3.0, math.inf)], 10) == "▁█"
    assert sparkline([(0.0, 1.0)], 10) == ""
    assert sparkline([(5.0, 1.0), (5.0, 2.0)], 10) != ""


def test_blocks_need_an_encoding_that_has_them() -> None:
    assert glyphs_for("UTF-8") is BLOCKS
    for encoding in ("ascii", "latin-1", "no such thing", None):
        assert glyphs_for(encoding) is ASCII


def test_sizes_and_shares_are_short() -> None:
    alone = [memory(n, None) for n in (0, 1023, 5 * 2**20, 61.2 * 2**30)]
    assert alone == ["0B", "1K", "5M", "61.2G"]
    assert memory(None, 5.0) == percent(None) == percent(math.nan) == ""
    assert (percent(0.974), percent(0.997), percent(1.0)) == ("97%", "99%", "100%")


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (61.24, 80, "61.2/80G"),
        (700, 1536, "700/1536G"),
        (870, 1100, "870/1100G"),
        (3, 1024, "3/1024G"),
        (0, 140, "0/140G"),
        (700, 12 * 1024, "0.7/12T"),
        (2.15, 80, "2.1/80G"),
        (0.00098, 141, "0/141G"),
        (9.3e-07, 141, "0/141G"),
    ],
)
def test_a_part_of_the_memory_reads_as_its_share(used: float, total: float, text: str) -> None:
    assert memory(used * 2**30, total * 2**30) == text


def test_what_matters_least_leaves_first() -> None:
    pieces = [LinePiece.of("aaa"), LinePiece.of("bbb", rank=2), LinePiece.of("ccc", rank=1)]
    assert fit(pieces, 13).plain == "aaa  bbb  ccc"
    assert fit(pieces, 12).plain == "aaa  ccc"
    assert fit(pieces, 7).plain == "aaa"
    assert fit(pieces, 2).plain == "a…"


def test_wide_characters_count_as_two_cells() -> None:
    assert fit([LinePiece.of("世界世界")], 5).cell_len <= 5
    head, row = table([Column("A", ["世界", "b"], right=False), Column("B", ["1", "2"])], 20)
    assert row(0).cell_len == row(1).cell_len == head.cell_len


@pytest.mark.parametrize("width", [1, 5, 8, 20])
def test_a_sentence_of_wide_characters_loses_nothing(width: int) -> None:
    text = "訓練は終わった 世界 and then"
    lines = wrap(text, width, 100)
    assert all(line.cell_len <= max(width, 2) for line in lines)
    if width > 1:  # a wide character has no place in one cell
        assert "".join(line.plain for line in lines).replace(" ", "") == text.replace(" ", "")
    assert [line.plain for line in wrap("    indented line", 12, 9)] == ["    indented", "line"]


def test_a_long_sentence_shows_that_it_goes_on() -> None:
    lines = [line.plain for line in wrap("one two three four five six", 10, 2)]
    assert lines[0] == "one two"
    assert lines[1].endswith("…")
    assert all(len(line) <= 10 for line in lines)


@pytest.mark.parametrize(
    ("parts", "keys"),
    [
        ([b"q"], ["q"]),
        ([b"\x1b[A\x1b[B\x1bOA"], ["up", "down", "up"]),
        ([b"\x1b[5~\x1b[6~\x1b[H\x1b[4~"], ["pageup", "pagedown", "home", "end"]),
        ([b"\x1b", b"[", b"5", b"~q"], ["pageup", "q"]),
        ([b"\x1b", b"q"], ["q"]),
        ([b"\x1b[1;5Dn\x1b[200~"], ["n"]),
        ([b"\x00\x01\r\n"], []),
        (["ö".encode()], ["ö"]),
    ],
)
def test_bytes_become_keys(parts: list[bytes], keys: list[str]) -> None:
    reader = KeyReader()
    assert [key for part in parts for key in reader.feed(part)] == keys


def test_an_escape_alone_is_a_key_when_nothing_follows() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b") == []
    assert reader.unfinished
    assert reader.flush() == ["escape"]
    assert not reader.unfinished
    assert reader.feed(b"\x1b[") == reader.flush() == []
    assert reader.feed(b"5~n") == ["5", "~", "n"]


def test_keys_change_the_view() -> None:
    view = ViewSettings(page=8)
    assert view.after_key("n").rows == "nodes"
    assert view.after_key("n").after_key("r").rows == "ranks"
    assert view.after_key("s").slowest
    assert not view.after_key("s").after_key("s").slowest
    assert view.after_key("p").paused
    assert view.after_key("pagedown").after_key("down").first == 9
    assert view.after_key("up").first == 0
    assert view.after_key("end").after_key("home").first == 0
    assert view.after_key("x") == view
    assert view.after_key("?").help
    assert not view.after_key("?").after_key("s").help
    assert not view.after_key("?").after_key("s").slowest
    assert view.after_key("q").quit
    assert view.after_key("escape") == view
    for key in ("q", "escape"):
        assert view.after_key("?").after_key(key) == view
