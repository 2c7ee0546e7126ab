"""What a script does, command by command, in the order in which it would run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allranks.lint.shell.model import (
    Assignment,
    Literal,
    Part,
    Redirect,
    Substitution,
    Variable,
    Word,
)
from allranks.lint.source_text import SourceFile, Span

if TYPE_CHECKING:
    from allranks.lint.command_options import CommandOptions

BATCH, TASK, REMOTE, UNKNOWN = "batch", "task", "remote", "unknown"


@dataclass(eq=False)
class Shell:
    """A shell that reads part of the script: it decides when variables are replaced, and where."""

    kind: str
    """``batch``: once, on the first node. ``task``: in every task of a step. Else it is not known."""
    source: SourceFile
    layers: tuple[Layer, ...] = ()
    """What it was started by, outermost first: srun, containers, wrappers."""
    parent: Shell | None = None

    @property
    def step(self) -> Layer | None:
        """The srun or mpirun that it runs under."""
        return next((each for each in self.layers if each.starts), None)


@dataclass(frozen=True, eq=False)
class Layer:
    """A command that runs another one: srun, mpirun, singularity, env, time."""

    name: str
    kind: str
    """``srun``, ``mpi``, ``container``, ``wrapper``, ``remote``, ``unknown``."""
    options: CommandOptions
    span: Span
    words: tuple[Word, ...] = ()

    @property
    def starts(self) -> bool:
        """Whether it starts processes, and on other nodes too."""
        return self.kind in ("srun", "mpi")


@dataclass(frozen=True)
class Binding:
    """What a variable is worth at some point."""

    choices: tuple[tuple[Part, ...], ...]
    """One: it is this. Several: one of them. None: not known."""
    span: Span
    exported: bool = False
    array: tuple[Word, ...] | None = None
    given: bool = True
    """False where some ways through the script give it no value."""

    @property
    def parts(self) -> tuple[Part, ...] | None:
        """The value where there is only one."""
        return self.choices[0] if len(self.choices) == 1 and self.given else None


Environment = dict[str, Binding]


@dataclass(eq=False)
class Call:
    """One command as it would run."""

    words: tuple[Word, ...]
    """With variables replaced as far as they are known, and split."""
    span: Span
    shell: Shell
    env: Mapping[str, Binding]
    assignments: tuple[Assignment, ...] = ()
    """Before the command, for it alone; the shell's own where there is no command."""
    redirects: tuple[Redirect, ...] = ()
    layers: tuple[Layer, ...] = ()
    """What runs it, beside what runs its shell; outermost first."""
    program: tuple[Word, ...] = ()
    """The words without those layers."""
    certain: bool = True
    """False in branches, and in functions that may not be called."""
    loop: bool = False
    background: bool = False
    checked: bool = False
    """Its exit code is looked at: ``||``, ``&&``, ``if``, ``!``."""
    function: str = ""
    inside: str = ""
    """``substitution``, ``trap``, ``string``, ``worker`` or nothing."""
    piped_to: tuple[Call, ...] = ()
    nested: list[Call] = field(default_factory=list)
    """The commands of the string, here-document or file that it runs."""
    subshell: bool = False
    doubtful: bool = False

    @property
    def name(self) -> str:
        """The program's name without its folder; empty where it is not known."""
        return command_name(self.program[0]) if self.program else ""

    @property
    def first(self) -> str:
        """The name of the first word, a wrapper's where there is one."""
        return command_name(self.words[0]) if self.words else ""

    @property
    def args(self) -> tuple[Word, ...]:
        """The words after the program's name."""
        return self.program[1:]

    @property
    def step(self) -> Layer | None:
        """The srun or mpirun that starts it, directly or around its shell."""
        own = next((each for each in self.layers if each.starts), None)
        return own or self.shell.step

    @property
    def all_layers(self) -> tuple[Layer, ...]:
        """Everything around the program, outermost first."""
        return (*self.shell.layers, *self.layers)


def command_name(word: Word) -> str:
    """``torchrun`` for ``/opt/bin/torchrun``, ``$(which torchrun)`` and ``${X:-torchrun}``."""
    text = word.text
    if text is None and len(word.parts) == 1:
        text = _indirect(word.parts[0])
    if text is None:  # $ENV/bin/torchrun
        last = word.parts[-1]
        text = last.text if isinstance(last, Literal) and "/" in last.text else ""
    return text.rstrip("/").rpartition("/")[2]


def _indirect(part: Part) -> str | None:
    if isinstance(part, Substitution) and len(part.calls) == 1:
        call = part.calls[0]
        if call.first in ("which", "command", "type") and call.words:
            return call.words[-1].text
    if isinstance(part, Variable) and part.operator in (":-", "-") and part.argument is not None:
        return part.argument.text
    return None
