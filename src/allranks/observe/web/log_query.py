"""Which lines of the logs are wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from allranks.core.formatting import clean
from allranks.errors import UsageError
from allranks.observe.web.log_files import SeekableLog, log_files
from allranks.runs.log_lines import Errors, LogLine
from allranks.runs.run import Run

WIDTH = 4000
"""Characters of a line that are shown and searched."""
_ESCAPE = b"\x1b"


@dataclass(frozen=True)
class LogQuery:
    """A search, or the choice of some ranks, an attempt, a stream."""

    text: str = ""
    regex: bool = False
    case: bool = False
    ranks: Sequence[range] | None = None
    attempt: int | None = None
    task: str = ""
    """Of a job array."""
    errors: bool = False
    stream: str = ""
    """``o``, ``e``, or ``slurm`` for what Slurm kept; empty: both of the ranks."""

    @property
    def chosen(self) -> bool:
        """Whether lines are left out, so that they must be read from the beginning."""
        return bool(self.text or self.errors or self.stream in ("o", "e"))

    def without_choice(self) -> LogQuery:
        """All lines of the same files."""
        stream = self.stream if self.stream == "slurm" else ""
        return replace(self, text="", regex=False, errors=False, stream=stream)

    def wants(self, rank: int) -> bool:
        """Whether it is one of the ranks asked for."""
        return self.ranks is None or any(rank in span for span in self.ranks)

    def files(self, run: Run) -> list[SeekableLog]:
        """The files to read."""
        return [
            file
            for file in log_files(run, self.stream == "slurm")
            if self.wants(file.rank)
            and self.attempt in (None, file.attempt)
            and self.task in ("", file.task)
        ]

    def matcher(self) -> Callable[[LogLine], bool]:
        """Whether a line is wanted; lines of one rank must come in their order."""
        is_error, pattern = Errors() if self.errors else None, self._pattern()

        def wanted(line: LogLine) -> bool:
            if self.stream in ("o", "e") and line.stream not in (self.stream, "f"):
                return False
            if is_error and not is_error(line):
                return False
            return pattern is None or pattern.search(_seen(line.text[:WIDTH])) is not None

        return wanted

    def skip(self) -> Callable[[bytes], bool] | None:
        """Whether a whole chunk has nothing of the search: most of them, and found out at once.

        Not of one with colours: they may stand within what is searched for.
        """
        if not self.text or self.regex or self.errors or not (self.case or self.text.isascii()):
            return None
        wanted = self.text.encode()
        if self.case:
            return lambda chunk: wanted not in chunk and _ESCAPE not in chunk
        lower = wanted.lower()
        return lambda chunk: lower not in chunk.lower() and _ESCAPE not in chunk

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.text:
            return None
        try:
            text = self.text if self.regex else re.escape(self.text)
            return re.compile(text, 0 if self.case else re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"'{self.text}' is not a regular expression: {error}.") from None


def _seen(text: str) -> str:
    """What the page shows of a line: without its colours."""
    return clean(text) if "\x1b" in text else text
