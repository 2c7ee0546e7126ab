"""A backslash inside single quotes keeps the variable from being replaced at all."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Literal, Word

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


def check(job: JobScript) -> Iterator[Finding]:
    """Launches whose words hold a ``$`` that no shell will look at any more."""
    for launch in job.launches:
        for option in launch.options.items:
            if option.value is None or not (name := _literal_variable(option.value)):
                continue
            place = option.span
            yield RULE.at(
                place,
                f"{option.written} gets the letters ${name}: the backslash keeps every shell from replacing it.",
                help=f"Remove the backslash before ${name}.",
                fix=_fix(option.value),
                severity=ERROR if launch.certain else WARNING,
            )

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
    for index, part in enumerate(word.parts):
        if isinstance(part, Literal) and part.text == "$" and part.quote:
            following = word.parts[index + 1] if index + 1 < len(word.parts) else None
            text = following.text if isinstance(following, Literal) else ""
            name = text.lstrip("{").split("}")[0].split("[")[0]
            if name.startswith(("SLURM", "MASTER", "HOSTNAME", "NODE", "head", "RANK")):
                return name
    return ""


def _fix(word: Word) -> list[Edit]:
    for part in word.parts:
        if isinstance(part, Literal) and part.text == "$" and part.span.text == "\\$":
            start = part.span.start
            return [Edit(part.span.source.span(start, start + 1), "")]
    return []
