"""Options on a command line: found by name however they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from allranks.lint.shell.model import Literal, Variable, Word
from allranks.lint.slurm_options import ALIASES, NONE, OPTIONAL, REQUIRED, OptionTable
from allranks.lint.source_text import Span


@dataclass(frozen=True)
class Option:
    """One option as it stands in the text."""

    name: str
    """Its whole name without dashes, words joined by ``-``."""
    value: Word | None
    span: Span
    written: str = ""
    """The name as it is written, with dashes."""


@dataclass(frozen=True)
class CommandOptions:
    """The options of one command, in their order."""

    items: tuple[Option, ...] = ()

    def find(self, *names: str) -> Option | None:
        """The last option of one of these names: later ones win."""
        wanted = set(names)
        return next((each for each in reversed(self.items) if each.name in wanted), None)

    def value(self, *names: str) -> Word | None:
        """Its value."""
        found = self.find(*names)
        return found.value if found else None

    def text(self, *names: str) -> str | None:
        """Its value where all of it is known."""
        word = self.value(*names)
        return word.text if word else None

    def has(self, *names: str) -> bool:
        """Whether one of them is there."""
        return self.find(*names) is not None


def after(word: Word, length: int) -> Word:
    """The word without its first characters, which must be known."""
    parts = list(word.parts)
    while parts and length > 0:
        first = parts[0]
        if not isinstance(first, Literal):
            break
        if len(first.text) <= length:
            length -= len(first.text)
            parts.pop(0)
            continue
        exact = len(first.text) == first.span.end - first.span.start
        start = first.span.start + length if exact else first.span.start
        parts[0] = Literal(first.text[length:], replace(first.span, start=start), first.quote)
        length = 0
    span = word.span
    if parts and parts[0].span.source is span.source and parts[0].span.start >= span.start:
        span = replace(span, start=min(parts[0].span.start, span.end))
    return Word(tuple(parts), span)


def slurm_options(words: Sequence[Word], table: OptionTable) -> tuple[CommandOptions, int]:
    """The options of srun or sbatch, and the number of words they take."""
    found: list[Option] = []
    at = 0
    while at < len(words):
        word, start = words[at], words[at].start
        if start == "--":
            at += 1
            break
        if not start.startswith("-") or start == "-":
            if not start and _may_be_options(word, words[at + 1 :], by_rest=True):
                at += 1  # $SRUN_ARGS
                continue
            break
        taken = _long(words, at, table) if start.startswith("--") else _short(words, at, table)
        found += taken[0]
        at += taken[1]
    return CommandOptions(tuple(found)), at


PROGRAM = re.compile(
    r"^(.*/)?(torchrun|python[\d.]*|bash|sh|accelerate|deepspeed|singularity|apptainer|shifter|env|numactl|nsys|uv|conda)$"
)
_HINT = re.compile(r"ARG|OPT|FLAG|SRUN|DISTRIBUTED|PARAM", re.I)


def _may_be_options(word: Word, rest: Sequence[Word], by_rest: bool = False) -> bool:
    """A variable in the place of options: taken for them where its name, or what follows, says so."""
    part = word.parts[0] if len(word.parts) == 1 else None
    if not rest or not isinstance(part, Variable) or part.quote:
        return False
    if part.choices:
        first = Word(part.choices[0], part.span).start.lstrip()
        return first.startswith("-") or not first
    if _HINT.search(part.name):
        return True
    following = rest[0].start
    return by_rest and (following.startswith("-") or PROGRAM.match(following) is not None)


def _listed(word: Word, rest: Sequence[Word]) -> bool:
    """``"${BINDS[@]}"`` with an option behind it is itself a list of options."""
    part = word.parts[0] if len(word.parts) == 1 else None
    listed = isinstance(part, Variable) and part.index in ("@", "*")
    return listed and bool(rest) and rest[0].start.startswith("-")


def _long(words: Sequence[Word], at: int, table: OptionTable) -> tuple[list[Option], int]:
    word = words[at]
    written, equals, _ = word.start.partition("=")
    name = table.long(written[2:]) or written[2:]
    canonical = ALIASES.get(name, name)
    if equals:
        value = after(word, len(written) + 1)
        return [Option(canonical, value, word.span, written)], 1
    kind = table.kind(name)
    if kind == REQUIRED and at + 1 < len(words):
        span = word.span.to(words[at + 1].span)
        return [Option(canonical, words[at + 1], span, written)], 2
    return [Option(canonical, None, word.span, written)], 1


def _short(words: Sequence[Word], at: int, table: OptionTable) -> tuple[list[Option], int]:
    """``-N2``, ``-N 2``, ``-lu``."""
    word, text = words[at], words[at].start
    found: list[Option] = []
    for index in range(1, len(text)):
        name = table.short.get(text[index])
        if name is None:
            return [*found, Option(text[index:], None, word.span, text)], 1
        kind = table.kind(name)
        rest = after(word, index + 1)
        if kind == NONE:
            found.append(Option(name, None, word.span, f"-{text[index]}"))
            continue
        if rest.parts:
            # sbatch reads -N=2 as the value "=2"; rules want to see that
            return [*found, Option(name, rest, word.span, f"-{text[index]}")], 1
        if kind == OPTIONAL or at + 1 >= len(words):
            return [*found, Option(name, None, word.span, f"-{text[index]}")], 1
        span = word.span.to(words[at + 1].span)
        return [*found, Option(name, words[at + 1], span, f"-{text[index]}")], 2
    return found, 1


def plain_options(
    words: Sequence[Word], flags: Iterable[str], valued: Iterable[str] | None = None
) -> tuple[CommandOptions, int]:
    """Options of a launcher or a wrapper, up to the first word that is none.

    With ``valued`` only those take the next word; without it all do that are no ``flags``.
    """
    switches = frozenset(flags)
    takes: Callable[[str], bool]
    if valued is None:
        takes = lambda name: name not in switches  # noqa: E731
    else:
        named = frozenset(valued)
        takes = lambda name: name in named  # noqa: E731
    found: list[Option] = []
    at = 0
    while at < len(words):
        word, start = words[at], words[at].start
        if start == "--":
            return CommandOptions(tuple(found)), at + 1
        if not start.startswith("-"):
            if not start and (
                _may_be_options(word, words[at + 1 :]) or _listed(word, words[at + 1 :])
            ):
                at += 1
                continue
            break
        written, equals, _ = start.partition("=")
        name = written.lstrip("-").replace("_", "-")
        if equals:
            found.append(Option(name, after(word, len(written) + 1), word.span, written))
        elif takes(name) and at + 1 < len(words):
            at += 1
            span = word.span.to(words[at].span)
            found.append(Option(name, words[at], span, written))
        else:
            found.append(Option(name, None, word.span, written))
        at += 1
    return CommandOptions(tuple(found)), at
