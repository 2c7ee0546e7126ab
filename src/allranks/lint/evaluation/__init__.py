"""Follows a script as a shell would, without running anything: which commands, where, with what.

Branches are all taken and marked as not certain, loops are taken once, functions are entered where they
are called, and strings and files that a shell will read are read.
"""

from __future__ import annotations

from allranks.lint.command_calls import Shell
from allranks.lint.evaluation.nested_scripts import ScriptEvaluator
from allranks.lint.evaluation.trace import Context, Reader, Trace
from allranks.lint.shell.model import Parsed
from allranks.lint.source_text import SourceFile


def evaluate(source: SourceFile, parsed: Parsed, shell: Shell, read: Reader) -> Trace:
    """The commands of a script in their order."""
    evaluator = ScriptEvaluator(read)
    evaluator.trace.sources.append(source)
    context = Context(shell)
    evaluator.statements(parsed.statements, context)
    evaluator.rest_of_functions(context)
    evaluator.trace.env = evaluator.env
    return evaluator.trace
