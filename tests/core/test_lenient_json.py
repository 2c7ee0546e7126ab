"""JSON as people write it: read exactly, corrected by line, refused by line and column."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.core.lenient_json import Correction, LenientJSONError, read_lenient, strict_text

NOTE = """\
{
  // how the optimizer is sharded
  "zero_optimization": {
    "stage": 1, # one
  },
  /* two
     lines */
  "fp16": {"enabled": False,},
  "url": "http://x/y # no comment, /* none */ \\" // ,]",
}
"""


def test_what_people_write() -> None:
    value, corrections = read_lenient(NOTE)
    assert value == {
        "zero_optimization": {"stage": 1},
        "fp16": {"enabled": False},
        "url": 'http://x/y # no comment, /* none */ " // ,]',
    }
    comma = "a comma before the closing bracket"
    assert corrections == [
        Correction(2, "a comment (//)"),
        Correction(4, comma),
        Correction(4, "a comment (#)"),
        Correction(6, "a comment (/*)"),
        Correction(8, "False in place of false"),
        Correction(8, comma),
        Correction(9, comma),
    ]


def test_the_strict_text_keeps_lines_and_columns() -> None:
    strict, _ = strict_text(NOTE)
    assert [len(line) for line in strict.split("\n")] == [len(line) for line in NOTE.split("\n")]
    assert json.loads(strict) == read_lenient(NOTE)[0]


def test_a_byte_order_mark_and_line_ends_of_windows() -> None:
    value, corrections = read_lenient('\ufeff{\r\n"a": 1, // b\r\n}\r\n')
    assert value == {"a": 1}
    assert [each.line for each in corrections] == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("", 1, 1, "expecting value"),
        ('{"a": 1\n "b": 2}', 2, 2, "expecting ',' delimiter"),
        ('{"a": 1 // x\n "b": 2}', 2, 2, "expecting ',' delimiter"),
        ('{"a": "b\n}', 1, 7, "this string is not closed on its line"),
        ('{"a": "b\\"\n}', 1, 7, "this string is not closed on its line"),
        ('{"a": 1} /* x', 1, 10, "this comment is never closed by */"),
        ("/*/ 1", 1, 1, "this comment is never closed by */"),
        ("[,]", 1, 2, "expecting value"),
        ("[1,,]", 1, 4, "expecting value"),
        ("{'a': 1}", 1, 2, "expecting property name enclosed in double quotes"),
        ("[1], ", 1, 4, "extra data"),
        ("[" * 100_000, 1, 1, "the brackets are nested too deeply"),
    ],
)
def test_hopeless_text(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(LenientJSONError) as caught:
        read_lenient(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.why.startswith(why)


def test_an_error_shows_its_place() -> None:
    with pytest.raises(LenientJSONError) as caught:
        read_lenient('{\n\t"a": 1,\n\t"b" 2\n}')
    told = "line 3, column 6: expecting ':' delimiter\n     \"b\" 2\n         ^"
    assert str(caught.value) == told
    with pytest.raises(LenientJSONError) as caught:
        read_lenient("[" + "1, " * 10_000 + "x]")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("part", ["/*", '"', '"\\', "//", ",", "#", '{"', "[1,", "\n/*"])
def test_long_text_is_read_once(part: str) -> None:
    """Linear time: a quadratic reader would need minutes for this."""
    with pytest.raises(LenientJSONError):
        read_lenient(part * 50_000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_json_stays_as_it_is(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read_lenient(text) == (json.loads(text), [])
    assert strict_text(text)[0] is text


@settings(max_examples=60)
@given(VALUES, st.sampled_from(["// x\n", "# ,]\n", '/* " */', "/* \n */"]))
def test_comments_and_commas_anywhere_between_tokens(value: Any, comment: str) -> None:
    text = json.dumps([value], indent=1)
    lines = text.replace("\n", f" {comment}\n").split("\n")
    loose = "\n".join(lines)[:-1] + ", " + comment + "]"
    assert read_lenient(loose)[0] == [value]


@settings(max_examples=100)
@given(st.text(alphabet='[]{}:,"\\/*# \n1aTrue', max_size=30))
def test_no_text_does_anything_but_read_or_refuse(text: str) -> None:
    with contextlib.suppress(LenientJSONError):
        value, _ = read_lenient(text)
        assert json.loads(strict_text(text)[0]) == value
