"""What following a script gives: its commands, the files it brought in, the jobs it submits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from allranks.lint.command_calls import Call, Environment, Shell
from allranks.lint.shell.model import Function, Word
from allranks.lint.source_text import SourceFile

DEEPEST = 8
MOST_CALLS = 4000
Reader = Callable[[str, SourceFile], SourceFile | None]
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
    submissions: list[tuple[SourceFile, Call]] = field(default_factory=list)
    """Job scripts that the script writes and hands to sbatch."""
    sources: list[SourceFile] = field(default_factory=list)
    """The files that were read, the script first."""
    unread: list[Word] = field(default_factory=list)
    """Files that are sourced or run and could not be read."""
    env: Environment = field(default_factory=dict)
    """The variables at the end."""


def file_reader(folder: Path | None) -> Reader:
    """Reads the scripts that a script names: beside it, or in the folder we are in."""
    known: dict[Path, SourceFile | None] = {}

    def read(name: str, asking: SourceFile) -> SourceFile | None:
        beside = asking.path.parent if asking.path is not None else folder
        for base in dict.fromkeys((beside, folder)):
            if base is None:
                continue
            path = base / _expanded(name)
            if path not in known:
                known[path] = _load(path)
            if known[path] is not None:
                return known[path]
        return None

    return read


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who has no account here
        return Path(name)


def _load(path: Path) -> SourceFile | None:
    try:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return None
        text = path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None
    return None if "\0" in text[:4096] else SourceFile(str(path), text, path)
