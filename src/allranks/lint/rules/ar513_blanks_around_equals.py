"""``PORT = 29500`` is a command called PORT."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import ERROR, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.source_text import Span

RULE = Rule(
    id="AR513",
    name="blanks-around-equals",
    title="The variable gets no value: there is a blank or a $ too many",
    why="""In the shell nothing may stand between a name, the equals sign and the value. PORT = 29500 runs a
    program called PORT, PORT= 29500 runs one called 29500, and $PORT=29500 one that is called after the old
    value. Nothing of that is found, the script goes on, and the variable stays as it was.""",
    severity=ERROR,
    symptoms=("command not found", "not a valid identifier", "an argument is empty"),
    bad=example("MASTER_PORT = 29500\nexport MASTER_PORT\nsrun python train.py", "--nodes=1"),
    good=example("MASTER_PORT=29500\nexport MASTER_PORT\nsrun python train.py", "--nodes=1"),
    clean=(
        example('test "$A" = 3\nexpr 1 = 2\n[ "$A" = 3 ]\nA= python train.py\necho = 3', "--nodes=1"),
        example("export A=1 B=2\nA=1 B=2 srun python train.py lr = 3\n$RUN --a=3", "--nodes=1"),
        example("(( A = 5 ))\nfor ((i = 0; i < 3; i++)); do srun python train.py; done", "--nodes=1"),
        example("A=$(echo $B | tr '=' ' ')\ncut -d = -f 1 x\ntr = ' ' < x\nrun_it '=' x", "--nodes=1"),
        example('let "A = 5"\ndeclare -i A=5\nsrun python train.py', "--nodes=1"),
    ),
)  # fmt: skip
_NAME = re.compile(r"^[A-Za-z_]\w*$")
_COMMANDS = frozenset({
    "test", "expr", "echo", "printf", "let", "print", "alias", "sqlite3", "bc", "tr", "grep", "egrep", "fgrep",
    "awk", "gawk", "sed", "cut", "sort", "paste", "column", "find", "jq", "yq", "perl", "python", "python3",
    "diff", "split", "join",
})  # fmt: skip
_EXPORTS = frozenset({"export", "declare", "readonly", "local", "typeset"})
_DOLLAR = re.compile(r"^\$(?:\w+|\{\w+\})=\S")


def check(job: JobScript) -> Iterator[Finding]:
    """Commands that were meant to be assignments."""
    for call in job.calls:
        if call.span.source is not job.source or not call.words or call.layers:
            continue
        if call.inside == "substitution" or call.piped_to:
            continue
        found = _wrong(call)
        if found is None:
            continue
        place, ran = found
        yield RULE.at(
            place,
            f"bash takes this for a command: {ran}. The variable gets no value.",
            help="Write NAME=VALUE, without blanks and without $ before the name.",
            fix=_fix(job, call),
            severity=ERROR if call.certain else WARNING,
        )


def _wrong(call: Call) -> tuple[Span, str] | None:
    words = [word.text for word in call.words]
    first = words[0] or ""
    if first in _EXPORTS:
        if "=" in words[1:] or (
            len(words) > 1 and call.assignments and (words[1] or "").isdecimal()
        ):
            return call.span, f"{first} is given a word that is no name"
        return None
    if call.assignments:
        last = call.assignments[-1]
        empty = last.value is not None and last.value.text == ""
        if empty and len(words) == 1 and first.isdecimal():
            return call.span, f"{first} is run with {last.name} empty"
        return None
    if len(words) == 1 and _DOLLAR.match(call.span.text):
        return call.span, "the name is replaced by its value first"
    second = words[1] if len(words) > 1 else ""
    if (
        second == "="
        and call.words[1].span.text == "="
        and _NAME.match(first)
        and first not in _COMMANDS
    ):
        return call.words[0].span.to(call.words[1].span), f"{first} is run with the argument ="
    return None


def _fix(job: JobScript, call: Call) -> list[Edit]:
    """``A = 5`` becomes ``A=5``, where the value is one word."""
    if len(call.words) != 3 or call.words[1].text != "=" or call.assignments:
        return []
    name, value = call.words[0].span, call.words[2].span
    if name.source is not job.source or value.source is not job.source:
        return []
    return [Edit(job.source.span(name.end, value.start), "=")]
