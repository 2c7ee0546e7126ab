"""A table of text, the same for every form of a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextTable:
    """Rows of text below titles. A row with fewer cells is one whose last cell reaches to the end."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = field(default_factory=frozenset)
    """Columns that hold numbers."""
    more: str = ""
    """What stands below: what was left out, what the titles mean."""
