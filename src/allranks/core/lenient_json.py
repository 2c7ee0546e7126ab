"""Read JSON as people write it: comments, a comma before a closing bracket, Python's True and None.

Everything that is not JSON is overwritten in place by as many blanks (or by a word of the same length),
so that the standard reader does the reading and every line and column of an error is the file's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from allranks.errors import UsageError

# Each alternative ends by itself on text that is never closed: no character is looked at twice.
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\[^\n])*"?)"""
    r"|(?P<comment>//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<comma>,)"
    r"|(?P<close>[}\]])"
    r"|(?P<open>[{\[:])"
    r"""|(?P<word>[^\s"#/,{}\[\]:]+|/)""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_NOT_A_LINE_END = re.compile(r"[^\r\n]")
_MARK = "\ufeff"
_SHOWN = 70


@dataclass(frozen=True)
class Correction:
    """Something that is not valid JSON but was accepted."""

    line: int
    what: str


class LenientJSONError(UsageError):
    """Text that cannot be read as JSON, even leniently."""

    def __init__(self, why: str, line: int, column: int, shown: str, under: int) -> None:
        self.why, self.line, self.column = why, line, column
        pointer = " " * (under - 1) + "^"
        super().__init__(f"line {line}, column {column}: {why}\n    {shown}\n    {pointer}")


def read_lenient(text: str) -> tuple[Any, list[Correction]]:
    """Return the value, and what had to be corrected: nothing for valid JSON."""
    strict, corrections = strict_text(text)
    return _read(strict, text), corrections


def strict_text(text: str) -> tuple[str, list[Correction]]:
    """Return the text as valid JSON, line for line; valid JSON is returned unchanged."""
    if _is_json(text):
        return text, []
    parts: list[str] = []
    corrections: list[Correction] = []
    end = 0
    for start, stop, new, correction in _changes(text):
        parts += [text[end:start], new]
        end = stop
        corrections.append(correction)
    return "".join([*parts, text[end:]]), corrections


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_Change = tuple[int, int, str, Correction]
"""From, to, what stands there instead, and the words for it."""


def _changes(text: str) -> Iterator[_Change]:
    """Return what to overwrite, in the order of the text."""
    begin = len(_MARK) if text.startswith(_MARK) else 0
    if begin:
        yield 0, begin, " ", Correction(1, "a byte order mark at the start of the file")
    comma: _Change | None = (
        None  # it goes if nothing but blanks and comments stands before a bracket
    )
    comments: list[_Change] = []
    previous = "open"
    for match, line in _tokens(text, begin):
        kind = str(match.lastgroup)
        if kind == "comment":
            comments.append((*match.span(), _blank(match[0]), _comment(match, line)))
            continue
        if kind == "close" and comma is not None:
            yield comma
        yield from comments
        comments.clear()
        comma = None
        if kind == "comma" and previous in ("string", "word", "close"):
            comma = (*match.span(), " ", Correction(line, "a comma before the closing bracket"))
        elif kind == "string" and not _closed(match[0]):
            raise _error("this string is not closed on its line", text, match.start())
        elif match[0] in _WORDS:
            right = _WORDS[match[0]]
            yield *match.span(), right, Correction(line, f"{match[0]} in place of {right}")
        previous = kind
    yield from comments


def _tokens(text: str, begin: int) -> Iterator[tuple[re.Match[str], int]]:
    """Yield each token with its line number."""
    line, counted = 1, 0
    for match in _TOKEN.finditer(text, begin):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        yield match, line


def _comment(match: re.Match[str], line: int) -> Correction:
    sign = "#" if match[0].startswith("#") else match[0][:2]
    if sign == "/*" and (len(match[0]) < 4 or not match[0].endswith("*/")):
        raise _error("this comment is never closed by */", match.string, match.start())
    return Correction(line, f"a comment ({sign})")


def _blank(text: str) -> str:
    return _NOT_A_LINE_END.sub(" ", text)


def _closed(string: str) -> bool:
    """Return whether the last quote ends the string: it is not the first, and not an escaped one."""
    if len(string) < 2 or not string.endswith('"'):
        return False
    inner = string[1:-1]
    return (len(inner) - len(inner.rstrip("\\"))) % 2 == 0


def _read(strict: str, text: str) -> Any:
    try:
        return json.loads(strict)
    except json.JSONDecodeError as error:
        raise _error(_reason(error.msg), text, error.pos) from None
    except RecursionError:
        raise _error("the brackets are nested too deeply", text, 0) from None
    except ValueError as error:  # a number of thousands of digits
        raise _error(str(error), text, 0) from None


def _reason(message: str) -> str:
    """Return the message of the standard parser, in lower case for the middle of a sentence."""
    return message[:1].lower() + message[1:]


def _error(why: str, text: str, position: int) -> LenientJSONError:
    position = min(position, len(text))
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].replace("\t", " ").rstrip()
    number, column = text.count("\n", 0, start) + 1, position - start + 1
    first = max(0, column - _SHOWN)  # one endless line is shown around the place only
    return LenientJSONError(why, number, column, line[first : first + 2 * _SHOWN], column - first)
