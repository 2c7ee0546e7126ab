"""Text that a shell reads later: strings of ``bash -c``, here-documents, worker scripts, handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allranks.lint.command_calls import REMOTE, TASK, UNKNOWN, Call, Layer, Shell
from allranks.lint.evaluation.command_evaluation import CommandEvaluator
from allranks.lint.evaluation.trace import Context
from allranks.lint.shell.model import Literal, Part, Word
from allranks.lint.shell.shell_parser import parse
from allranks.lint.shell_variables import bind
from allranks.lint.source_text import Fragment, SourceFile, Span

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})


class ScriptEvaluator(CommandEvaluator):
    """The whole of it."""

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
        if source is None or _reads_itself(context.shell, source):
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
        return self.statements(
            parse(source).statements, replace(context, inside=_inside(context, "worker"))
        )

    def string(self, parts: Sequence[Part], context: Context, inside: str) -> list[Call]:
        """Text that this very shell reads again."""
        if not parts or not isinstance(parts[0], Literal):
            return []
        fragment = _fragment(parts, parts[0].span)
        inner = replace(context, inside=_inside(context, inside))
        return self.statements(parse(fragment).statements, inner)

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
        self, call: Call, source: SourceFile, args: Sequence[Word], context: Context, inside: str
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
        inner = replace(context, shell=shell, inside=_inside(context, inside), function="")
        made = self.statements(parse(source).statements, inner)
        self.env = env
        self.trace.functions = functions
        return made

    def submitted(self, args: Sequence[Word], call: Call) -> None:
        for word in args:
            body = self.written.get(word.shown)
            if body is not None:
                self.trace.submissions.append((_fragment(body.parts, body.span), call))


def _inside(context: Context, now: str) -> str:
    """What runs inside ``$(…)`` or a handler stays inside, however many shells are between."""
    return context.inside if context.inside in ("substitution", "trap") else now


def _reads_itself(shell: Shell, source: SourceFile) -> bool:
    """Whether a script would be followed inside of itself."""
    around: Shell | None = shell
    while around is not None:
        if source.path is not None and around.source.path == source.path:
            return True
        around = around.parent
    return False


def _kind(outer: Shell, layers: tuple[Layer, ...]) -> str:
    if any(layer.kind == "remote" for layer in layers):
        return REMOTE
    if any(layer.starts for layer in layers):
        return TASK
    return UNKNOWN if any(layer.kind == "unknown" for layer in layers) else outer.kind


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
