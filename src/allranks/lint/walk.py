"""Follows a script as a shell would, without running anything: which commands, where, with what.

Branches are all taken and marked as not certain, loops are taken once, functions are entered where they
are called, and strings and files that a shell will read are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from allranks.lint.bindings import READERS, assigned, bind, forget, merge
from allranks.lint.calls import BATCH, REMOTE, TASK, Binding, Call, Environment, Layer, Shell
from allranks.lint.expand import Expander
from allranks.lint.shell.model import (
    Branches,
    Chain,
    Command,
    Function,
    Group,
    Literal,
    Loop,
    Part,
    Pipeline,
    Redirect,
    Statement,
    Substitution,
    Variable,
    Word,
)
from allranks.lint.shell.parse import parse
from allranks.lint.source import Fragment, Source, Span
from allranks.lint.wrappers import peel

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_DEEPEST = 8
_MOST_CALLS = 4000
_DECLARE = frozenset({"export", "declare", "typeset", "local", "readonly"})
Reader = Callable[[str, Source], Source | None]
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
    submissions: list[tuple[Source, Call]] = field(default_factory=list)
    """Job scripts that the script writes and hands to sbatch."""
    sources: list[Source] = field(default_factory=list)
    """The files that were read, the script first."""
    unread: list[Word] = field(default_factory=list)
    """Files that are sourced or run and could not be read."""
    env: Environment = field(default_factory=dict)
    """The variables at the end."""


def follow(source: Source, shell: Shell, read: Reader) -> Trace:
    """The commands of a script in their order."""
    walker = _Walker(read)
    walker.trace.sources.append(source)
    context = Context(shell)
    walker.statements(parse(source).statements, context)
    walker.rest_of_functions(context)
    walker.trace.env = walker.env
    return walker.trace


class _Walker:
    def __init__(self, read: Reader) -> None:
        self.read = read
        self.trace = Trace()
        self.env: Environment = {}
        self.called: set[str] = set()
        self.written: dict[str, Word] = {}

    # Statements

    def statements(self, statements: Iterable[Statement], context: Context) -> list[Call]:
        made: list[Call] = []
        for each in statements:
            if len(self.trace.calls) > _MOST_CALLS:
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

    # Commands

    def expander(self, context: Context) -> Expander:
        def inside(part: Substitution) -> tuple[Call, ...]:
            return self.substitution(part, context)

        return Expander(self.env, context.shell, inside)

    def substitution(self, part: Substitution, context: Context) -> tuple[Call, ...]:
        if context.depth > _DEEPEST:
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
        if context.depth > _DEEPEST:
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

    def note_written(self, call: Call) -> None:
        """``cat > worker.sh <<EOF``: a file that is run later; ``sbatch <<EOF``: another job."""
        body = next((each.body for each in call.redirects if each.operator == "<<"), None)
        if body is None:
            return
        if call.name == "sbatch":
            self.trace.submissions.append((_fragment(body.parts, body.span), call))
        for each in call.redirects:
            if (
                each.operator in (">", ">|")
                and each.target is not None
                and call.name in ("cat", "tee")
            ):
                self.written[each.target.shown] = body

    # Text that a shell reads

    def run_text(self, call: Call, context: Context) -> list[Call]:
        name, args = call.name, call.args
        if name in ("source", ".") and args:
            return self.sourced(args, context)
        if name == "eval" and args:
            return self.string(_joined(args), context, "string")
        if name == "trap" and args:
            return self.handler(args[0], context)
        if name == "sbatch":
            self.submitted(args, call)
            return []
        remote = any(layer.kind == "remote" for layer in call.layers)
        if remote and call.program:
            return self.in_shell(call, _joined(call.program), (), context, "string")
        if name in SHELLS:
            return self.shell_command(call, context)
        if call.program and _script_like(call.program[0]):
            return self.worker(call, call.program[0], args, context)
        return []

    def shell_command(self, call: Call, context: Context) -> list[Call]:
        """``bash -c TEXT``, ``bash FILE ARGS``, ``bash <<EOF``."""
        args = list(call.args)
        command = False
        while args and args[0].start.startswith(("-", "+")) and args[0].start != "--":
            flag = args.pop(0).start
            command |= not flag.startswith("--") and "c" in flag
            if flag in ("-o", "-O", "+o", "+O", "--rcfile", "--init-file") and args:
                args.pop(0)
        if command:
            if not args:
                return []
            return self.in_shell(call, args[0].parts, args[2:], context, "string")
        if args and args[0].text != "-s":
            return self.worker(call, args[0], args[1:], context)
        body = next((each.body for each in call.redirects if each.body is not None), None)
        return self.in_shell(call, body.parts, (), context, "string") if body else []

    def worker(self, call: Call, file: Word, args: Sequence[Word], context: Context) -> list[Call]:
        """A script of its own that the command runs."""
        body = self.written.get(file.shown) or self.written.get(file.shown.removeprefix("./"))
        if body is not None:
            return self.in_shell(call, body.parts, args, context, "string")
        source = self.read(file.text, context.shell.source) if file.text else None
        if source is None:
            self.trace.unread.append(file)
            return []
        if source not in self.trace.sources:
            self.trace.sources.append(source)
        return self.nested(call, source, args, context, "worker")

    def sourced(self, args: Sequence[Word], context: Context) -> list[Call]:
        source = self.read(args[0].text, context.shell.source) if args[0].text else None
        if source is None:
            self.trace.unread.append(args[0])
            return []
        if source not in self.trace.sources:
            self.trace.sources.append(source)
        return self.statements(parse(source).statements, replace(context, inside="worker"))

    def string(self, parts: Sequence[Part], context: Context, inside: str) -> list[Call]:
        """Text that this very shell reads again."""
        if not parts or not isinstance(parts[0], Literal):
            return []
        fragment = _fragment(parts, parts[0].span)
        return self.statements(parse(fragment).statements, replace(context, inside=inside))

    def handler(self, word: Word, context: Context) -> list[Call]:
        if word.text in ("", "-") or (word.text or "").startswith("-"):
            return []
        env, self.env = self.env, dict(self.env)
        made = self.string(word.parts, replace(context, certain=False), "trap")
        self.env = env
        return made

    def in_shell(
        self, call: Call, parts: Sequence[Part], args: Sequence[Word], context: Context, inside: str
    ) -> list[Call]:
        if not parts:
            return []
        fragment = _fragment(parts, parts[0].span)
        return self.nested(call, fragment, args, context, inside)

    def nested(
        self, call: Call, source: Source, args: Sequence[Word], context: Context, inside: str
    ) -> list[Call]:
        """Statements that a new shell reads: it sees what is exported."""
        layers = (*context.shell.layers, *call.layers)
        shell = Shell(_kind(context.shell, layers), source, layers, context.shell)
        env, functions = self.env, dict(self.trace.functions)
        self.env = {name: each for name, each in env.items() if each.exported}
        for item in call.assignments:
            if item.value is not None:
                bind(self.env, item, item.value.parts, None, exported=True)
        self.positional(args)
        inner = replace(context, shell=shell, inside=inside, function="")
        made = self.statements(parse(source).statements, inner)
        self.env = env
        self.trace.functions = functions
        return made

    def submitted(self, args: Sequence[Word], call: Call) -> None:
        for word in args:
            body = self.written.get(word.shown)
            if body is not None:
                self.trace.submissions.append((_fragment(body.parts, body.span), call))


def _kind(outer: Shell, layers: tuple[Layer, ...]) -> str:
    if any(layer.kind == "remote" for layer in layers):
        return REMOTE
    if any(layer.starts for layer in layers):
        return TASK
    return outer.kind if outer.kind != TASK else TASK


def _alternatives(words: tuple[Word, ...]) -> list[tuple[tuple[Word, ...], bool]]:
    """A command whose name is one of several: each of them, none for certain."""
    first = words[0].parts[0] if words and words[0].parts else None
    if not isinstance(first, Variable) or not first.choices or len(words[0].parts) > 1:
        return [(words, True)]
    ways: list[tuple[tuple[Word, ...], bool]] = []
    for choice in first.choices:
        text = Word(choice, first.span)
        if not all(isinstance(part, Literal) for part in choice[:1]):
            continue
        ways.append(((*_resplit(text), *words[1:]), False))
    return ways or [(words, True)]


def _resplit(word: Word) -> tuple[Word, ...]:
    parts = tuple(
        replace(part, quote="") if isinstance(part, Literal) else part for part in word.parts
    )
    expander = Expander({}, Shell(BATCH, word.span.source), lambda _: ())
    return expander.words((Word(parts, word.span),))


def _joined(words: Sequence[Word]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for word in words:
        if parts:
            parts.append(Literal(" ", replace(word.span, end=word.span.start)))
        parts += word.parts
    return tuple(parts)


def _script_like(word: Word) -> bool:
    text = word.text
    return text is not None and text.endswith((".sh", ".bash", ".slurm", ".sbatch"))


def _fragment(parts: Sequence[Part], place: Span) -> Fragment:
    fragment = Fragment(place.source.name)
    for part in parts:
        if isinstance(part, Literal):
            fragment.add(part.text, part.span)
        else:
            fragment.add_hole(part, part.span)
    fragment.path = place.source.path
    return fragment.done()


def file_reader(folder: Path | None) -> Reader:
    """Reads the scripts that a script names: beside it, or in the folder we are in."""
    known: dict[Path, Source | None] = {}

    def read(name: str, asking: Source) -> Source | None:
        beside = asking.path.parent if asking.path is not None else folder
        for base in dict.fromkeys((beside, folder)):
            if base is None:
                continue
            path = (
                (base / Path(name).expanduser())
                if not name.startswith("~")
                else Path(name).expanduser()
            )
            if path not in known:
                known[path] = _load(path, name)
            if known[path] is not None:
                return known[path]
        return None

    return read


def _load(path: Path, name: str) -> Source | None:
    try:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return None
        text = path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None
    return None if "\0" in text[:4096] else Source(name, text, path)
