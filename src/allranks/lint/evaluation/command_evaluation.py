"""One command: its words, what it sets, and the function that it may be."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from allranks.lint.command_calls import BATCH, Binding, Call, Shell
from allranks.lint.command_wrappers import peel
from allranks.lint.evaluation.statement_evaluation import StatementEvaluator
from allranks.lint.evaluation.trace import DEEPEST, Context
from allranks.lint.shell.model import (
    Command,
    Function,
    Literal,
    Part,
    Redirect,
    Substitution,
    Variable,
    Word,
)
from allranks.lint.shell_variables import READERS, bind, forget
from allranks.lint.variable_expansion import Expander

_DECLARE = frozenset({"export", "declare", "typeset", "local", "readonly"})


class CommandEvaluator(StatementEvaluator):
    """Commands with their effects; text that another shell reads is left to those who build on this."""

    @abstractmethod
    def run_text(self, call: Call, context: Context) -> list[Call]:
        """The commands of the text or file that a command runs."""

    @abstractmethod
    def note_written(self, call: Call) -> None:
        """Remembers a file that the command writes."""

    def expander(self, context: Context) -> Expander:
        def inside(part: Substitution) -> tuple[Call, ...]:
            return self.substitution(part, context)

        return Expander(self.env, context.shell, inside)

    def substitution(self, part: Substitution, context: Context) -> tuple[Call, ...]:
        if context.depth > DEEPEST:
            return ()
        before = dict(self.env)
        inner = replace(
            context, inside="substitution", depth=context.depth + 1, background=False, checked=True
        )
        made = self.statements(part.body, inner)
        self.env = before
        return tuple(made)

    def redirects(self, found: Sequence[Redirect], context: Context) -> tuple[Redirect, ...]:
        expander = self.expander(context)
        return tuple(
            replace(
                each,
                target=expander.word(each.target) if each.target else None,
                body=expander.word(each.body) if each.body else None,
            )
            for each in found
        )

    def command(self, each: Command, context: Context) -> list[Call]:
        expander = self.expander(context)
        prefix: dict[str, tuple[tuple[Part, ...], tuple[Word, ...] | None]] = {}
        items = []
        for item in each.assignments:
            array = None if item.array is None else expander.words(item.array)
            value = expander.value(item.value)
            prefix[item.name] = (value, array)
            items.append(
                replace(
                    item, value=Word(value, item.span) if item.array is None else None, array=array
                )
            )
        words = expander.words(each.words)
        redirects = self.redirects(each.redirects, context)
        if not each.words:
            for item in each.assignments:
                bind(self.env, item, *prefix[item.name])
        made: list[Call] = []
        for chosen, certain in _alternatives(words):
            call = self.call(
                each, chosen, redirects, replace(context, certain=certain and context.certain)
            )
            call.assignments = tuple(items)
            made.append(call)
        for call in list(made):
            made += self.effect(call, each, context)
        return made

    def call(
        self,
        each: Command,
        words: tuple[Word, ...],
        redirects: tuple[Redirect, ...],
        context: Context,
    ) -> Call:
        layers, program = peel(words)
        call = Call(
            words, each.span, context.shell, dict(self.env), (), redirects, layers, program,
            context.certain, context.loop, context.background, context.checked, context.function,
            context.inside, subshell=context.subshell, doubtful=each.doubtful,
        )  # fmt: skip
        self.trace.calls.append(call)
        return call

    def effect(self, call: Call, each: Command, context: Context) -> list[Call]:
        """What a command changes, and the commands that it runs in turn."""
        name = call.name
        if name in _DECLARE or name == "unset":
            self.declare(call, each, context)
            return []
        if name in READERS or name == "((":
            forget(self.env, [word.text or "" for word in call.words[1:]])
        self.note_written(call)
        if context.depth > DEEPEST:
            return []
        deeper = replace(context, depth=context.depth + 1, certain=call.certain)
        if name in self.trace.functions and not call.layers:
            return self.enter(self.trace.functions[name], call, deeper)
        made = self.run_text(call, deeper)
        call.nested += made
        return made

    def declare(self, call: Call, each: Command, context: Context) -> None:
        name, flags = call.name, "".join(w.text or "" for w in call.args if w.start.startswith("-"))
        exported = name == "export" or "x" in flags
        expander = self.expander(context)
        done = []
        for item in each.declared:
            array = None if item.array is None else expander.words(item.array)
            value = expander.value(item.value)
            bind(self.env, item, value, array, exported=exported)
            done.append(
                replace(
                    item, value=Word(value, item.span) if item.array is None else None, array=array
                )
            )
        call.assignments = tuple(done)
        for word in call.args:
            text = word.text or ""
            if name == "unset":
                self.env.pop(text, None)
            elif exported and text in self.env:
                self.env[text] = replace(self.env[text], exported=True)
            elif exported and text.isidentifier():
                self.env[text] = Binding((), word.span, True, given=False)

    def enter(self, function: Function, call: Call, context: Context) -> list[Call]:
        self.called.add(function.name)
        kept = {key: self.env.get(key) for key in ("@", *map(str, range(1, 10)))}
        self.positional(call.args)
        made = self.statements(function.body, replace(context, function=function.name))
        for key, binding in kept.items():
            self.env.pop(key, None)
            if binding is not None:
                self.env[key] = binding
        return made

    def positional(self, words: Sequence[Word]) -> None:
        """``$1`` … and ``$@``."""
        for index in range(1, 10):
            self.env.pop(str(index), None)
        if not words:
            return
        for index, word in enumerate(words[:9], start=1):
            self.env[str(index)] = Binding((word.parts,), word.span)
        self.env["@"] = Binding((), words[0].span, array=tuple(words))


def _alternatives(words: tuple[Word, ...]) -> list[tuple[tuple[Word, ...], bool]]:
    """A command whose name is one of several: each of them, none for certain."""
    _, program = peel(words)
    at = len(words) - len(program)
    first = program[0].parts[0] if program and len(program[0].parts) == 1 else None
    if not isinstance(first, Variable) or not first.choices:
        return [(words, True)]
    ways: list[tuple[tuple[Word, ...], bool]] = []
    for choice in first.choices:
        if choice and isinstance(choice[0], Literal):
            split = _resplit(Word(choice, first.span))
            ways.append(((*words[:at], *split, *words[at + 1 :]), False))
    return ways or [(words, True)]


def _resplit(word: Word) -> tuple[Word, ...]:
    parts = tuple(
        replace(part, quote="") if isinstance(part, Literal) else part for part in word.parts
    )
    expander = Expander({}, Shell(BATCH, word.span.source), lambda _: ())
    return expander.words((Word(parts, word.span),))
