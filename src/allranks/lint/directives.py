"""The ``#SBATCH`` lines of a script, read the way sbatch reads them.

sbatch stops at the first line that is neither blank nor a comment. On a directive line ``'`` and ``"``
group, a backslash escapes, and an unquoted ``#`` ends the line, inside a word too. Nothing is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from allranks.lint.command_options import CommandOptions, Option, slurm_options
from allranks.lint.shell.model import Literal, Word
from allranks.lint.slurm_options import SBATCH
from allranks.lint.source_text import SourceFile, Span

_DISABLED = re.compile(r"^\s*#+\s*#?\s*SBATCH\b", re.I)
_OTHERS = re.compile(r"^#(PBS|BSUB|\$|COBALT|PJM|OAR|MSUB)\s+-", re.M)
_MARKS = ("#SBATCH", "#SLURM")


@dataclass(frozen=True)
class Directive:
    """One line that sbatch reads."""

    span: Span
    words: tuple[Word, ...]
    options: CommandOptions
    component: int = 0
    """Which part of a heterogeneous job it belongs to."""
    stray: tuple[Word, ...] = ()
    """Words that belong to no option: sbatch refuses them."""
    unclosed: bool = False
    """A quote is opened and not closed: sbatch refuses that too."""


@dataclass
class Directives:
    """All that a script says to sbatch."""

    lines: list[Directive] = field(default_factory=list)
    late: list[Span] = field(default_factory=list)
    """Directives after the first command, which sbatch does not read."""
    indented: list[Span] = field(default_factory=list)
    """Directives with blanks before them, which are comments to sbatch."""
    disabled: list[Span] = field(default_factory=list)
    """``##SBATCH`` and ``# SBATCH``: switched off."""
    other: list[Span] = field(default_factory=list)
    """Directives of other schedulers."""
    first_command: int | None = None
    """The offset at which the commands begin."""
    components: int = 1

    meant: list[Directive] = field(default_factory=list)
    """The late ones, where there are no others: what the author believes to have asked for."""

    @property
    def options(self) -> CommandOptions:
        """All options of the first component, in their order."""
        lines = self.lines or self.meant
        return CommandOptions(
            tuple(item for line in lines if line.component == 0 for item in line.options.items)
        )

    def __bool__(self) -> bool:
        return bool(self.lines or self.meant)


def read_directives(source: SourceFile, comments: tuple[Span, ...] = ()) -> Directives:
    """The directives of a script; ``comments`` are its real ones, which tell text in strings apart."""
    found = Directives()
    real = {span.start for span in comments}
    offset = 0
    for line in source.text.split("\n"):
        _line(source, line, offset, found, real)
        offset += len(line) + 1
    if not found.lines and found.late:
        read = Directives()
        for span in found.late:
            _add(source, span.text.lstrip(), span.end - len(span.text.lstrip()), read)
        found.meant = read.lines
    found.other = [source.span(m.start(), m.end()) for m in _OTHERS.finditer(source.text)]
    return found


def _line(source: SourceFile, line: str, offset: int, found: Directives, real: set[int]) -> None:
    text = line.rstrip("\r")
    stripped = text.lstrip()
    span = source.span(offset, offset + len(text.rstrip()))
    if found.first_command is None:
        if text.startswith(_MARKS):
            _add(source, text, offset, found)
        elif stripped.startswith(_MARKS):
            found.indented.append(span)
        elif _DISABLED.match(text):
            found.disabled.append(span)
        elif stripped and not stripped.startswith("#"):
            found.first_command = offset
    elif stripped.startswith("#SBATCH") and (
        not real or span.start + len(text) - len(stripped) in real
    ):
        found.late.append(span)


def _add(source: SourceFile, text: str, offset: int, found: Directives) -> None:
    mark = len("#SBATCH") if text.startswith("#SBATCH") else len("#SLURM")
    words, closed = _split(source, text, offset, mark)
    span = source.span(offset, offset + len(text.rstrip()))
    if words and (words[0].text or "").lower() in ("hetjob", "packjob"):
        found.components += 1
        words = words[1:]
    options, taken = slurm_options(words, SBATCH)
    items, stray = list(options.items), []
    while taken < len(words):  # options may follow a stray word
        stray.append(words[taken])
        more, count = slurm_options(words[taken + 1 :], SBATCH)
        items += more.items
        taken += 1 + count
    component = found.components - 1
    line = Directive(
        span, tuple(words), CommandOptions(tuple(items)), component, tuple(stray), not closed
    )
    found.lines.append(line)


def _split(source: SourceFile, text: str, offset: int, start: int) -> tuple[list[Word], bool]:
    """The words of a directive line, and whether every quote is closed."""
    words: list[Word] = []
    current: list[str] = []
    begin, quote, inside = start, "", False
    at = start

    def end(stop: int) -> None:
        nonlocal inside
        if inside:
            span = source.span(offset + begin, offset + stop)
            words.append(Word((Literal("".join(current), span),), span))
        current.clear()
        inside = False

    while at < len(text):
        # what an outer shell fills in is as good as a variable: nobody here knows it
        character = "$" if source.hole(text[at]) is not None else text[at]
        if not inside and not character.isspace() and character != "#":
            begin, inside = at, True
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and at + 1 < len(text):
                at += 1
                current.append(text[at])
            else:
                current.append(character)
        elif character in "'\"":
            quote = character
        elif character == "\\" and at + 1 < len(text):
            at += 1
            current.append(text[at])
        elif character == "#":
            end(at)
            return words, True
        elif character.isspace():
            end(at)
        else:
            current.append(character)
        at += 1
    end(len(text.rstrip()))
    return words, not quote


def option_lines(found: Directives) -> Iterator[tuple[Directive, Option]]:
    """Every option that sbatch reads, with its line."""
    for line in found.lines:
        for item in line.options.items:
            yield line, item
