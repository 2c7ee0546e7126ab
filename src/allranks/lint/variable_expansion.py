"""Variables put in place of their names, as far as the script itself says what they are worth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from allranks.lint.command_calls import Call, Environment, Shell
from allranks.lint.shell.model import (
    Arithmetic,
    Literal,
    Part,
    Substitution,
    Variable,
    Word,
)
from allranks.lint.source_text import Span

_BLANK = re.compile(r"\s+")
_MOST_PARTS = 400
Follow = Callable[[Substitution], tuple[Call, ...]]


class Expander:
    """Expands words the way one shell would at one moment."""

    def __init__(self, env: Environment, shell: Shell, follow: Follow) -> None:
        self.env = env
        self.shell = shell
        self._follow = follow

    def words(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """All words of a command, split where unquoted values hold blanks."""
        return tuple(each for word in words for each in self._split(word))

    def value(self, word: Word | None) -> tuple[Part, ...]:
        """The value of an assignment: nothing is split."""
        if word is None:
            return ()
        return tuple(part for raw in word.parts for part in self._part(raw))

    def word(self, word: Word) -> Word:
        """One word that stays one."""
        return Word(self.value(word), word.span)

    def _split(self, word: Word) -> Iterator[Word]:
        listed = self._list(word)
        if listed is not None:
            yield from listed
            return
        parts: list[Part] = []
        empty = True
        for raw in word.parts:
            for part in self._part(raw):
                if not isinstance(part, Literal) or part.quote or not _BLANK.search(part.text):
                    if not (isinstance(part, Literal) and not part.text and not part.quote):
                        parts.append(part)
                        empty = False
                    continue
                for piece, ends in _pieces(part):
                    if piece is not None:
                        parts.append(piece)
                    if ends and parts:
                        yield Word(tuple(parts), _place(parts, word))
                        parts = []
                empty = False
        if parts or (empty and any(part.quote for part in word.parts)):
            yield Word(tuple(parts), _place(parts, word) if parts else word.span)

    def _list(self, word: Word) -> tuple[Word, ...] | None:
        """The elements of ``"${NAME[@]}"`` where they are known."""
        if len(word.parts) != 1 or not isinstance(word.parts[0], Variable):
            return None
        variable = word.parts[0]
        name = variable.name
        if not (variable.index in ("@", "*") or name in ("@", "*")) or variable.operator:
            return None
        binding = self.env.get(name if name not in ("@", "*") else "@")
        return binding.array if binding is not None and binding.given else None

    def _part(self, part: Part) -> Iterator[Part]:
        if isinstance(part, Variable):
            yield from self._variable(part)
        elif isinstance(part, Arithmetic):
            yield replace(part, terms=tuple(self._terms(part)))
        elif isinstance(part, Substitution) and not part.calls:
            yield replace(part, calls=self._follow(part))
        else:
            yield part

    def _terms(self, part: Arithmetic) -> Iterator[str | Part]:
        for term in part.terms:
            if isinstance(term, str):
                yield term
                continue
            expanded = tuple(self._part(term))
            if len(expanded) == 1:
                yield expanded[0]
            elif expanded:  # several parts are one number still
                yield from ("(", *expanded, ")") if len(expanded) < 9 else (term,)

    def _variable(self, part: Variable) -> Iterator[Part]:
        if part.shell is not None:  # another shell has looked at it already
            yield part
            return
        argument = self.word(part.argument) if part.argument is not None else None
        unknown = replace(part, shell=self.shell, argument=argument)
        binding = self.env.get(part.name)
        if binding is None:
            yield unknown
            return
        if binding.array is not None:
            yield from self._element(unknown, binding.array)
            return
        value = binding.parts
        if value is not None and len(value) < _MOST_PARTS:
            if not part.operator or part.operator in (":-", "-", ":=", "=", ":?", "?"):
                filled = value or (argument.parts if argument and ":" in part.operator else ())
                yield from (_quoted(each, part.quote) for each in filled)
                return
            if part.operator in (":+", "+"):
                yield from (
                    _quoted(each, part.quote) for each in (argument.parts if argument else ())
                )
                return
        yield replace(unknown, choices=binding.choices if not part.operator else ())

    def _element(self, part: Variable, array: tuple[Word, ...]) -> Iterator[Part]:
        index = part.index or "0"
        simple = not part.operator and index.isdigit()
        if (
            simple
            and int(index) < len(array)
            and all(_single(each) for each in array[: int(index) + 1])
        ):
            yield from (_quoted(each, part.quote) for each in array[int(index)].parts)
        elif simple and array:
            yield replace(part, choices=(array[0].parts,))
        else:
            yield part


def _single(word: Word) -> bool:
    """Whether an element surely is one: an unquoted ``$(…)`` may be many."""
    return all(isinstance(part, Literal) or part.quote for part in word.parts)


def _quoted(part: Part, quote: str) -> Part:
    return replace(part, quote='"' if quote else "") if part.quote != quote else part


def _pieces(part: Literal) -> Iterator[tuple[Literal | None, bool]]:
    """The text between blanks; the flag says that a word ends there."""
    exact = len(part.text) == part.span.end - part.span.start
    at = 0
    for match in _BLANK.finditer(part.text):
        yield _cut(part, at, match.start(), exact), True
        at = match.end()
    yield _cut(part, at, len(part.text), exact), False


def _cut(part: Literal, start: int, end: int, exact: bool) -> Literal | None:
    if start >= end:
        return None
    span = part.span
    if exact:
        span = replace(span, start=part.span.start + start, end=part.span.start + end)
    return Literal(part.text[start:end], span, part.quote)


def _place(parts: Sequence[Part], word: Word) -> Span:
    first, last = parts[0].span, parts[-1].span
    inside = first.source is word.span.source and word.span.start <= first.start <= word.span.end
    return word.span if inside and last.end <= word.span.end else first.to(last)
