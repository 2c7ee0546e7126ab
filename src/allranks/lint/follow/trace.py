"""What following a script gives: its commands, the files it brought in, the jobs it submits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from allranks.lint.calls import Call, Environment, Shell
from allranks.lint.shell.model import Function, Word
from allranks.lint.source import Source

DEEPEST = 8
MOST_CALLS = 4000
Reader = Callable[[str, Source], Source | None]
"""Gives the text of a file that a script names, if it is there to read."""


@dataclass(frozen=True)
class Context:
    """How the commands at hand would run."""

    shell: Shell
    certain: bool = True
    loop: bool = False
    background: bool = False
    checked: bool = False
    function: str = ""
    inside: str = ""
    subshell: bool = False
    depth: int = 0


@dataclass
class Trace:
    """All that a script does."""

    calls: list[Call] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    submissions: list[tuple[Source, Call]] = field(default_factory=list)
    """Job scripts that the script writes and hands to sbatch."""
    sources: list[Source] = field(default_factory=list)
    """The files that were read, the script first."""
    unread: list[Word] = field(default_factory=list)
    """Files that are sourced or run and could not be read."""
    env: Environment = field(default_factory=dict)
    """The variables at the end."""
