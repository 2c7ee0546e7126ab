"""Follows a script as a shell would, without running anything: which commands, where, with what.

Branches are all taken and marked as not certain, loops are taken once, functions are entered where they
are called, and strings and files that a shell will read are read.
"""

from __future__ import annotations

from allranks.lint.calls import Shell
from allranks.lint.follow.texts import Walker
from allranks.lint.follow.trace import Context, Reader, Trace
from allranks.lint.shell.model import Parsed
from allranks.lint.source import Source


def follow(source: Source, parsed: Parsed, shell: Shell, read: Reader) -> Trace:
    """The commands of a script in their order."""
    walker = Walker(read)
    walker.trace.sources.append(source)
    context = Context(shell)
    walker.statements(parsed.statements, context)
    walker.rest_of_functions(context)
    walker.trace.env = walker.env
    return walker.trace
