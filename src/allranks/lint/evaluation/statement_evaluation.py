"""Statements in their order: branches, loops, pipes and groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from allranks.lint.command_calls import Binding, Call, Environment
from allranks.lint.evaluation.trace import MOST_CALLS, Context, Reader, Trace
from allranks.lint.shell.model import (
    Branches,
    Chain,
    Command,
    Group,
    Loop,
    Pipeline,
    Redirect,
    Statement,
    Substitution,
    Word,
)
from allranks.lint.shell_variables import assigned, forget, merge
from allranks.lint.variable_expansion import Expander


class StatementEvaluator(ABC):
    """Walks through statements; what a single command does is left to those who build on this."""

    def __init__(self, read: Reader) -> None:
        self.read = read
        self.trace = Trace()
        self.env: Environment = {}
        self.called: set[str] = set()
        self.written: dict[str, Word] = {}
        """Files that the script itself writes, by name."""

    @abstractmethod
    def command(self, each: Command, context: Context) -> list[Call]:
        """One command."""

    @abstractmethod
    def expander(self, context: Context) -> Expander:
        """What replaces variables here and now."""

    @abstractmethod
    def redirects(self, found: Sequence[Redirect], context: Context) -> tuple[Redirect, ...]:
        """Redirections with their variables replaced."""

    @abstractmethod
    def substitution(self, part: Substitution, context: Context) -> tuple[Call, ...]:
        """The commands inside ``$(…)``."""

    def statements(self, statements: Iterable[Statement], context: Context) -> list[Call]:
        made: list[Call] = []
        for each in statements:
            if len(self.trace.calls) > MOST_CALLS:
                break
            made += self.statement(each, context)
        return made

    def statement(self, each: Statement, context: Context) -> list[Call]:
        if isinstance(each, Command):
            return self.command(each, context)
        if isinstance(each, Pipeline):
            return self.pipeline(each, context)
        if isinstance(each, Chain):
            checked = context.checked or each.operator == "||"
            first = self.statement(each.left, replace(context, checked=checked))
            unsure = replace(context, certain=context.certain and each.operator == "&&")
            return first + self.statement(each.right, unsure)
        if isinstance(each, Group):
            return self.group(each, context)
        if isinstance(each, Branches):
            return self.branches(each, context)
        if isinstance(each, Loop):
            return self.loop(each, context)
        self.trace.functions[each.name] = each
        return []

    def pipeline(self, each: Pipeline, context: Context) -> list[Call]:
        stages: list[list[Call]] = []
        for stage in each.stages:
            before = dict(self.env)
            stages.append(self.statement(stage, context))
            self.env = before if len(each.stages) > 1 else self.env
        for index, calls in enumerate(stages[:-1]):
            following = tuple(stage[0] for stage in stages[index + 1 :] if stage)
            for call in calls:
                call.piped_to = (*call.piped_to, *following)
        return [call for stage in stages for call in stage]

    def group(self, each: Group, context: Context) -> list[Call]:
        inner = replace(
            context,
            background=context.background or each.background,
            checked=context.checked or each.negated,
            subshell=context.subshell or each.subshell,
        )
        before = dict(self.env)
        made = self.statements(each.body, inner)
        if each.subshell or each.background:
            self.env = before
        redirects = self.redirects(each.redirects, context)
        for call in made if redirects else ():
            call.redirects = (*call.redirects, *redirects)
        return made

    def branches(self, each: Branches, context: Context) -> list[Call]:
        made = self.statements(each.conditions, replace(context, checked=True))
        before = dict(self.env)
        ends: list[Environment] = [] if each.complete else [before]
        for body in each.bodies:
            self.env = dict(before)
            made += self.statements(body, replace(context, certain=False))
            ends.append(self.env)
        self.env = merge(ends) if ends else before
        return made

    def loop(self, each: Loop, context: Context) -> list[Call]:
        expander = self.expander(context)
        values = expander.words(each.values) if each.values is not None else ()
        names = set(assigned(each.body))
        forget(self.env, names)
        before = dict(self.env)
        if each.variable:
            known = bool(values) and all(word.text is not None for word in values)
            choices = tuple(dict.fromkeys(word.parts for word in values[:16])) if known else ()
            self.env[each.variable] = Binding(choices, each.span, given=len(choices) != 1)
        made = self.statements(each.conditions, replace(context, checked=True, loop=True))
        made += self.statements(each.body, replace(context, loop=True))
        self.env = merge([before, self.env])
        forget(self.env, names)
        return made

    def rest_of_functions(self, context: Context) -> None:
        """Functions that nobody calls by name: traps, or what another file calls."""
        for name, function in list(self.trace.functions.items()):
            if name not in self.called:
                env, self.env = self.env, dict(self.env)
                self.statements(function.body, replace(context, certain=False, function=name))
                self.env = env
