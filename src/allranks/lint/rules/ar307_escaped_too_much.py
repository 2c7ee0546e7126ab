"""A backslash inside single quotes keeps the variable from being replaced at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.command_calls import TASK
from allranks.lint.finding import ERROR, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Literal, Word
from allranks.lint.source_text import Span
from allranks.lint.word_values import RANKS

RULE = Rule(
    id="AR307",
    name="escaped-too-much",
    title="The variable is never replaced",
    why="""Inside single quotes a backslash stays a backslash. The shell that reads the text of bash -c '…'
    later sees \\$NAME, takes the $ for a plain sign, and the program gets the letters $NAME. Inside single
    quotes a plain $NAME is right; the backslash belongs into double quotes.""",
    severity=ERROR,
    symptoms=("invalid int value: '$SLURM_PROCID'", "hangs at init"),
    bad=example(
        "srun bash -c 'torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID train.py'", "--nodes=2"
    ),
    good=example(
        "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID train.py'", "--nodes=2"
    ),
    clean=(
        example(
            'srun bash -c "torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID train.py"', "--nodes=2"
        ),
        example(
            "awk '/\\$SLURM/ {print}' x\nsrun python train.py --pattern '\\$HOME'", "--nodes=2"
        ),
    ),
)
_NAME = re.compile(r"\$\{?((?:SLURM|MASTER_|NODE_RANK|HOSTNAME|head_node|RANK)\w*)")


def check(job: JobScript) -> Iterator[Finding]:
    """Launches whose words hold a ``$`` that no shell will look at any more."""
    for launch in job.launches:
        for option in launch.options.items:
            if option.value is not None and (name := _literal_variable(option.value)):
                yield _finding(launch, option.span, option.value, option.written, name)
        for word in launch.args:
            name = _literal_variable(word)
            if name in RANKS:
                yield _finding(launch, word.span, word, "The script", name)
    yield from _exported(job)
    for call in job.named("scontrol", "hostname", "getent"):
        for word in call.args:
            if (name := _literal_variable(word)) and "\\$" in word.span.text:
                yield RULE.at(
                    word.span,
                    f"{call.name} gets the letters ${name}: the backslash keeps the shell from replacing it.",
                    help=f"Remove the backslash before ${name}.",
                    fix=_fix(word),
                    severity=ERROR if call.certain else WARNING,
                )


def _finding(launch: Launch, span: Span, word: Word, who: str, name: str) -> Finding:
    inside = launch.call.shell.kind == TASK
    return RULE.at(
        span,
        f"{who} gets the letters ${name}: no shell replaces it any more.",
        help=f"Remove the backslash before ${name}."
        if inside
        else f"Let a shell in each task read it: srun bash -c '… ${name} …'.",
        fix=_fix(word) if inside else [],
        severity=ERROR if launch.certain else WARNING,
    )


def _exported(job: JobScript) -> Iterator[Finding]:
    """``srun --export=RANK=\\$SLURM_PROCID``: srun replaces nothing."""
    for call in job.calls:
        for layer in call.layers:
            option = layer.options.find("export") if layer.kind == "srun" else None
            if (
                option is None
                or option.value is None
                or not (name := _literal_variable(option.value))
            ):
                continue
            yield RULE.at(
                option.span,
                f"srun does not replace variables: every task gets the letters ${name}.",
                help="Set it in each task: srun bash -c 'RANK=$SLURM_PROCID python …'",
                severity=ERROR if call.certain else WARNING,
            )


def _literal_variable(word: Word) -> str:
    """The variable whose name stands there as plain letters."""
    match = _NAME.search(word.text or "")
    return match[1] if match is not None else ""


def _fix(word: Word) -> list[Edit]:
    for part in word.parts:
        if isinstance(part, Literal) and part.text == "$" and part.span.text == "\\$":
            start = part.span.start
            return [Edit(part.span.source.span(start, start + 1), "")]
    return []
