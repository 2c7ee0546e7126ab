"""Where the ranks of a launch meet: the address and the port, by option or by variable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from allranks.lint.command_options import Option
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import OTHER, PYTHON, Launch
from allranks.lint.shell.model import Literal, Part, Word
from allranks.lint.source_text import Span

ADDRESS = ("rdzv-endpoint", "master-addr", "main-process-ip")
PORT = ("master-port", "main-process-port", "rdzv-endpoint")


@dataclass(frozen=True)
class RendezvousAddress:
    """An address or a port of one launch."""

    launch: Launch
    word: Word
    span: Span
    """Where it is given to the launch."""
    name: str
    """The option or variable that gives it."""


def addresses(job: JobScript) -> Iterator[RendezvousAddress]:
    """The address of every launch that has one."""
    for launch in job.launches:
        option = launch.options.find(*ADDRESS)
        if option is not None and option.value is not None:
            word = _host(option.value) if option.name == "rdzv-endpoint" else option.value
            yield RendezvousAddress(launch, word, option.span, option.written)
        elif launch.kind in (PYTHON, OTHER) and (found := _variable(launch, "MASTER_ADDR")):
            yield found


def ports(job: JobScript) -> Iterator[RendezvousAddress]:
    """The port of every launch that has one."""
    for launch in job.launches:
        option = _port_option(launch)
        if option is not None and option.value is not None:
            word = _port(option.value) if option.name == "rdzv-endpoint" else option.value
            if word is not None:
                yield RendezvousAddress(launch, word, option.span, option.written)
        elif launch.kind in (PYTHON, OTHER) and (found := _variable(launch, "MASTER_PORT")):
            yield found


def _port_option(launch: Launch) -> Option | None:
    endpoint = launch.options.find("rdzv-endpoint")
    if endpoint is not None and launch.options.has("rdzv-backend"):
        return endpoint
    return launch.options.find("master-port", "main-process-port") or endpoint


def _variable(launch: Launch, name: str) -> RendezvousAddress | None:
    for item in launch.call.assignments:
        if item.name == name and item.value is not None:
            return RendezvousAddress(launch, item.value, item.span, name)
    binding = launch.call.env.get(name)
    if binding is None or not binding.exported or binding.parts is None:
        return None
    return RendezvousAddress(launch, Word(binding.parts, binding.span), binding.span, name)


def _host(word: Word) -> Word:
    kept: list[Part] = []
    for part in word.parts:
        if isinstance(part, Literal) and ":" in part.text:
            before = part.text.partition(":")[0]
            if before:
                kept.append(replace(part, text=before))
            break
        kept.append(part)
    return Word(tuple(kept), word.span)


def _port(word: Word) -> Word | None:
    """What follows the last colon; None where there is none to be seen."""
    for index in range(len(word.parts) - 1, -1, -1):
        part = word.parts[index]
        if isinstance(part, Literal) and ":" in part.text:
            after = part.text.rpartition(":")[2]
            start = part.span.end - len(after)
            first = (
                [Literal(after, replace(part.span, start=max(part.span.start, start)))]
                if after
                else []
            )
            return Word((*first, *word.parts[index + 1 :]), word.span)
    return None
