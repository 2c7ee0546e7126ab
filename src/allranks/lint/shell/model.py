"""The words and statements of a shell script: only what a reader of job scripts needs to tell apart.

A word is made of parts, since who expands a part, and when, is what most mistakes are about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allranks.lint.source_text import Span

if TYPE_CHECKING:
    from allranks.lint.command_calls import Call, Shell


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands for itself."""

    text: str
    span: Span
    quote: str = ""
    """``'``, ``"`` or nothing; a backslash counts as quoting its character."""


@dataclass(frozen=True, slots=True)
class Variable:
    """``$NAME`` or ``${NAME…}``, which some shell replaces."""

    name: str
    span: Span
    quote: str = ""
    operator: str = ""
    """``:-``, ``%``, ``#`` (length), ``:`` (cut) … or nothing."""
    argument: Word | None = None
    index: str = ""
    """``0``, ``@``, ``*``, or the text of another index."""
    shell: Shell | None = None
    """Who expands it; set when the script is followed."""
    choices: tuple[tuple[Part, ...], ...] = ()
    """What it may be worth, where the script says so in several places."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """``$(…)``: what commands print."""

    body: tuple[Statement, ...]
    span: Span
    quote: str = ""
    calls: tuple[Call, ...] = ()
    """The commands in it, once the script is followed."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``$((…))``: operators as text, and the parts between them."""

    terms: tuple[str | Part, ...]
    span: Span
    quote: str = ""


Part = Literal | Variable | Substitution | Arithmetic


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    parts: tuple[Part, ...]
    span: Span

    @property
    def text(self) -> str | None:
        """The word where all of it is known."""
        texts = [part.text for part in self.parts if isinstance(part, Literal)]
        return "".join(texts) if len(texts) == len(self.parts) else None

    @property
    def shown(self) -> str:
        """The word for people: unknown parts as they are written."""
        return "".join(
            part.text if isinstance(part, Literal) else part.span.text for part in self.parts
        )

    @property
    def start(self) -> str:
        """What is known of its beginning."""
        known = ""
        for part in self.parts:
            if not isinstance(part, Literal):
                break
            known += part.text
        return known

    def variables(self) -> Iterator[Variable]:
        """Every variable in it, those of arithmetic, defaults and commands too."""
        for part in self.parts:
            yield from variables_of(part)


def variables_of(part: Part) -> Iterator[Variable]:
    """The variables that a part reads directly; not those of commands inside it."""
    if isinstance(part, Variable):
        yield part
        if part.argument is not None:
            yield from part.argument.variables()
    elif isinstance(part, Arithmetic):
        for term in part.terms:
            if not isinstance(term, str):
                yield from variables_of(term)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=value``, ``NAME+=value``, ``NAME=(…)``, ``NAME[i]=value``."""

    name: str
    value: Word | None
    span: Span
    array: tuple[Word, ...] | None = None
    append: bool = False
    index: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """``> file``, ``2>&1``, ``<<EOF``."""

    operator: str
    target: Word | None
    span: Span
    descriptor: str = ""
    body: Word | None = None
    """The text of a here-document, with what is expanded in it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. Tests and declarations are commands too."""

    words: tuple[Word, ...]
    span: Span
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    declared: tuple[Assignment, ...] = ()
    """What ``export``, ``local``, ``declare``, ``readonly`` give a value."""
    doubtful: bool = False
    """The parser could not make sense of the text around it."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``a | b | c``."""

    stages: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Chain:
    """``a && b``, ``a || b``."""

    left: Statement
    operator: str
    right: Statement
    span: Span


@dataclass(frozen=True, slots=True)
class Group:
    """``{ … }``, ``( … )``, or statements that only share redirects; ``!`` and ``&`` are noted here."""

    body: tuple[Statement, ...]
    span: Span
    subshell: bool = False
    negated: bool = False
    background: bool = False
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Branches:
    """``if`` and ``case``: conditions that always run, and bodies of which one or none does."""

    conditions: tuple[Statement, ...]
    bodies: tuple[tuple[Statement, ...], ...]
    complete: bool
    """Whether one of the bodies surely runs: there is an ``else`` or a ``*)``."""
    span: Span
    subject: Word | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """``for``, ``while``, ``until``, ``select``."""

    variable: str
    values: tuple[Word, ...] | None
    conditions: tuple[Statement, ...]
    body: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Function:
    """A function, at the place where it is defined."""

    name: str
    body: tuple[Statement, ...]
    span: Span


Statement = Command | Pipeline | Chain | Group | Branches | Loop | Function


@dataclass(frozen=True)
class Parsed:
    """A whole text."""

    statements: tuple[Statement, ...]
    comments: tuple[Span, ...] = ()
    broken: tuple[Span, ...] = field(default=())
    """Where the parser could not make sense of the text."""
