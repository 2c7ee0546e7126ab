"""What a check says: which rule, where, what is wrong, why it bites and what to type."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from allranks.lint.source_text import SourceFile, Span


class Severity(IntEnum):
    """How sure and how bad: an error fails or hangs, a warning will bite, a note is worth knowing."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """``error``, ``warning`` or ``note``."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Severity:
        """The severity of that name."""
        return cls[word.upper()]


NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


@dataclass(frozen=True)
class Edit:
    """Text to put in place of what stands at a span."""

    span: Span
    text: str


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know."""

    rule: str
    """Its id: AR012."""
    severity: Severity
    title: str
    """The rule in a few words, the same for all its findings."""
    message: str
    """What is there, in second person, and what comes of it."""
    span: Span
    why: str = ""
    """Why it matters, in a sentence or two."""
    help: str = ""
    """What to type instead."""
    fix: tuple[Edit, ...] = ()
    """A change that is safe to make without asking; empty: none is."""
    related: tuple[Span, ...] = field(default=(), compare=False)
    """Other places that belong to it."""

    @property
    def source(self) -> SourceFile:
        """The file it is about."""
        return self.span.source

    @property
    def url(self) -> str:
        """The page of the rule, below the documentation's root."""
        return f"rules/{self.rule.lower()}.md"
