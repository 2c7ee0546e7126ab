"""A job script as it is understood: what it asks for, what it runs, and how many processes that makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.lint.command_calls import BATCH, UNKNOWN, Call, Shell
from allranks.lint.directives import Directives, read_directives
from allranks.lint.evaluation import evaluate
from allranks.lint.evaluation.trace import Reader, Trace, file_reader
from allranks.lint.job_resources import Allocation, Shape, allocation_of
from allranks.lint.launch_commands import Launch, find_launches
from allranks.lint.process_counts import Processes, count_processes
from allranks.lint.shell.model import Assignment, Part, Variable, Word, variables_of
from allranks.lint.shell.shell_parser import parse
from allranks.lint.source_text import SourceFile
from allranks.lint.word_values import Values

if TYPE_CHECKING:
    from allranks.cluster.sites.model import Site


class JobScript:
    """Everything that rules ask about one script."""

    def __init__(
        self, source: SourceFile, read: Reader | None = None, site: Site | None = None
    ) -> None:
        self.source = source
        self.site = site
        self.folder = source.path.parent if source.path is not None else Path()
        shell_text = source if is_shell(source.text) else SourceFile(source.name, "", source.path)
        self.is_shell = shell_text is source
        self.parsed = parse(shell_text)
        self.directives: Directives = read_directives(source, self.parsed.comments)
        self.allocation: Allocation = allocation_of(self.directives)
        self.shell = Shell(BATCH if self.directives else UNKNOWN, source)
        self.trace: Trace = evaluate(
            shell_text, self.parsed, self.shell, read or file_reader(self.folder)
        )
        self.values = Values(self.allocation)

    @property
    def is_batch(self) -> bool:
        """Whether the script has directives; otherwise it may be a worker script or no job."""
        return bool(self.directives)

    @property
    def calls(self) -> list[Call]:
        """Every command, in its order."""
        return self.trace.calls

    @cached_property
    def launches(self) -> list[Launch]:
        """The commands that start training processes."""
        return list(find_launches(self.calls))

    @cached_property
    def trains(self) -> bool:
        """Whether a launcher of a framework, or Python under srun or mpirun, is in it."""
        return any(each.kind != "other" for each in self.launches)

    def shape(self, launch: Launch) -> Shape:
        """Nodes and tasks of the step around a launch."""
        return self.values.shape(launch.step)

    def processes(self, launch: Launch) -> Processes:
        """Return how many processes a launch starts, and how many it expects."""
        return count_processes(launch, self.values)

    def named(self, *names: str) -> Iterator[Call]:
        """The commands of these names."""
        wanted = set(names)
        return (call for call in self.calls if call.name in wanted)

    def assigned(self, *names: str) -> Iterator[tuple[Call, Assignment]]:
        """Every place where one of these variables gets a value."""
        wanted = set(names)
        for call in self.calls:
            for item in call.assignments:
                if item.name in wanted:
                    yield call, item

    def reads(self) -> Iterator[tuple[Call, Variable]]:
        """Every variable that a command reads, where it is written."""
        seen: set[tuple[int, int, int]] = set()
        for call in self.calls:
            for part in _parts(call):
                for variable in variables_of(part):
                    place = variable.span
                    key = (id(place.source), place.start, place.end)
                    if key not in seen:
                        seen.add(key)
                        yield call, variable

    def option(self, name: str) -> str | None:
        """What the directives give an option."""
        return self.allocation.text(name)

    def exclusive(self) -> bool:
        """Whether the job is alone on its nodes."""
        options = self.allocation.options
        return options.has("exclusive") or self.option("mem") == "0"


_OTHER_LANGUAGES = re.compile(
    r"^#!.*\b(python[\d.]*|perl|Rscript|julia|t?csh|fish|ruby|node|lua)\b|^#!.*/rc\b"
)


def is_shell(text: str) -> bool:
    """Whether the first line leaves the text to a shell that we can read."""
    return _OTHER_LANGUAGES.match(text.partition("\n")[0]) is None


def _parts(call: Call) -> Iterator[Part]:
    words: list[Word] = [*call.words]
    for item in call.assignments:
        words += [item.value] if item.value is not None else []
        words += item.array or ()
    for redirect in call.redirects:
        words += [redirect.target] if redirect.target is not None else []
    for word in words:
        yield from word.parts
