"""Words out of the parser's tree: quotes and backslashes resolved, expansions kept as parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from allranks.lint.shell.model import (
    Arithmetic,
    Literal,
    Part,
    Statement,
    Substitution,
    Variable,
    Word,
)
from allranks.lint.source_text import SourceFile

if TYPE_CHECKING:
    from tree_sitter import Node

_UNQUOTED = re.compile(r"\\(\n|.)", re.DOTALL)
_QUOTED = re.compile(r'\\(\n|[$`"\\])')
_HEREDOC = re.compile(r"\\(\n|[$`\\])")
_EXPANSION = re.compile(
    r"^\$\{(?P<bang>!)?(?P<length>\#(?=\w))?(?P<name>\w+|[@*?$!#-])(?:\[(?P<index>.*?)\])?"
    r"(?P<operator>:[-=+?]|[-=+?]|%%?|\#\#?|//?|:|\^\^?|,,?|@)?(?P<rest>.*)\}$",
    re.DOTALL,
)
EXPANDED = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion",
     "process_substitution"}
)  # fmt: skip
Statements = Callable[["Node"], tuple[Statement, ...]]


class Words:
    """Reads words of one source. ``statements`` reads what stands inside ``$(…)``."""

    def __init__(self, source: SourceFile, statements: Statements) -> None:
        self.source = source
        self._statements = statements

    def word(self, node: Node) -> Word:
        """The word that a node stands for."""
        parts = tuple(self._parts(node, ""))
        return Word(parts, self.source.span(node.start_byte, node.end_byte))

    def literal(self, start: int, end: int, quote: str = "") -> Word:
        """A word of plain text between two places."""
        text = self.source.text[start:end]
        return Word(tuple(self._plain(text, start, quote)), self.source.span(start, end))

    def heredoc(self, node: Node | None, start: int, end: int, quoted: bool) -> Word:
        """The body of a here-document; with a quoted end word nothing in it is expanded."""
        if quoted or node is None:
            return self.literal(start, end, "'" if quoted else '"')
        parts = tuple(self._between(node, start, end, '"', _HEREDOC))
        return Word(parts, self.source.span(start, end))

    def _parts(self, node: Node, quote: str) -> Iterator[Part]:
        kind = node.type
        if kind == "concatenation" or kind == "command_name":
            yield from self._between(node, node.start_byte, node.end_byte, quote, _UNQUOTED)
        elif kind == "string" or kind == "translated_string":
            yield from self._string(node)
        elif kind == "raw_string":
            start, end = node.start_byte + 1, node.end_byte - 1
            yield from self._plain(self.source.text[start:end], start, "'")
        elif kind == "ansi_c_string":
            start, end = node.start_byte + 2, node.end_byte - 1
            text = self.source.text[start:end]
            yield Literal(_ansi(text), self.source.span(start, end), "'")
        elif kind in EXPANDED:
            yield from self._expansion(node, quote)
        elif node.child_count and any(child.is_named for child in node.children):
            yield from self._between(node, node.start_byte, node.end_byte, quote, _UNQUOTED)
        else:
            start, end = node.start_byte, node.end_byte
            yield from self._escaped(start, end, quote, _UNQUOTED if not quote else _QUOTED)

    def _string(self, node: Node) -> Iterator[Part]:
        begin = node.start_byte + (2 if node.type == "translated_string" else 1)
        inner = node
        if node.type == "translated_string":
            inner = next((c for c in node.children if c.type == "string"), node)
            begin = inner.start_byte + 1
        end = inner.end_byte - 1
        if end <= begin:
            yield Literal("", self.source.span(node.start_byte, node.end_byte), '"')
            return
        yield from self._between(inner, begin, end, '"', _QUOTED)

    def _between(
        self, node: Node, start: int, end: int, quote: str, escapes: re.Pattern[str]
    ) -> Iterator[Part]:
        """Children that are expanded or quoted, and the text between them."""
        at = start
        for child in node.children:
            if not child.is_named or child.start_byte < at:
                continue
            if child.type in ("string_content", "heredoc_content", "word", "number"):
                if not child.child_count:
                    continue
            elif child.type == "comment":
                continue
            yield from self._escaped(at, self._begin(child), quote, escapes)
            yield from self._parts(child, quote)
            at = child.end_byte
        if at < end:
            yield from self._escaped(at, end, quote, escapes)

    def _escaped(
        self, start: int, end: int, quote: str, escapes: re.Pattern[str]
    ) -> Iterator[Part]:
        text = self.source.text[start:end]
        at = 0
        for match in escapes.finditer(text) if "\\" in text else ():
            if match.start() > at:
                yield from self._plain(text[at : match.start()], start + at, quote)
            if match[1] != "\n":
                span = self.source.span(start + match.start(), start + match.end())
                yield Literal(match[1], span, quote or "\\")
            at = match.end()
        if at < len(text):
            yield from self._plain(text[at:], start + at, quote)

    def _plain(self, text: str, start: int, quote: str) -> Iterator[Part]:
        """Text, with the holes that an outer shell has filled."""
        at = 0
        for index, character in enumerate(text):
            if character < "\U000f0000":
                continue
            content = self.source.hole(character)
            if content is None:
                continue
            if index > at:
                span = self.source.span(start + at, start + index)
                yield Literal(text[at:index], span, quote)
            yield replace(cast("Variable", content), quote=quote)
            at = index + 1
        if at < len(text) or (not text and quote):
            yield Literal(text[at:], self.source.span(start + at, start + len(text)), quote)

    def _begin(self, node: Node) -> int:
        """Where an expansion really starts: the parser counts blanks before it as a part of it."""
        if node.type not in EXPANDED:
            return node.start_byte
        text = self.source.text[node.start_byte : node.end_byte]
        return node.start_byte + len(text) - len(text.lstrip())

    def _expansion(self, node: Node, quote: str) -> Iterator[Part]:
        start = self._begin(node)
        span = self.source.span(start, node.end_byte)
        text = self.source.text[start : node.end_byte]
        if node.type == "simple_expansion":
            yield Variable(text[1:], span, quote)
        elif node.type == "expansion":
            yield self._braces(node, text, quote)
        elif node.type == "arithmetic_expansion":
            yield Arithmetic(tuple(self._terms(node)), span, quote)
        else:
            yield Substitution(self._statements(node), span, quote)

    def _braces(self, node: Node, text: str, quote: str) -> Variable:
        begin = self._begin(node)
        span = self.source.span(begin, node.end_byte)
        match = _EXPANSION.match(text)
        if match is None:
            return Variable("", span, quote, operator="?")
        operator = "#" if match["length"] else match["operator"] or ("!" if match["bang"] else "")
        argument = None
        if operator and match["rest"]:
            start = begin + match.start("rest")
            argument = self._argument(node, start, node.end_byte - 1)
        return Variable(match["name"], span, quote, operator, argument, match["index"] or "")

    def _argument(self, node: Node, start: int, end: int) -> Word:
        parts = tuple(self._between(node, start, end, "", _UNQUOTED))
        return Word(parts, self.source.span(start, end))

    def _terms(self, node: Node) -> Iterator[str | Part]:
        for child in node.children:
            if child.type in EXPANDED:
                yield from self._expansion(child, '"')
            elif child.type == "variable_name":
                span = self.source.span(child.start_byte, child.end_byte)
                yield Variable(span.source.text[span.start : span.end], span, '"')
            elif child.child_count:
                yield from self._terms(child)
            else:
                yield self.source.text[child.start_byte : child.end_byte]


def _ansi(text: str) -> str:
    plain = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
    return re.sub(r"\\(.)", lambda match: plain.get(match[1], match[0]), text, flags=re.DOTALL)
