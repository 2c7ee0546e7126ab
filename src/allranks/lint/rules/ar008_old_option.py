"""Options of Slurm that were renamed."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_options import Option
from allranks.lint.directives import option_lines
from allranks.lint.finding import WARNING, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR008",
    name="old-option",
    title="Slurm has renamed this option",
    why="""Slurm drops old spellings after some versions: --workdir is --chdir since 17.11 and refused
    since 19.05, --cpu_bind and --mem_bind of srun are --cpu-bind and --mem-bind. A newer cluster does
    not start the job.""",
    symptoms=("sbatch: unrecognized option", "srun: unrecognized option"),
    bad=example("srun python train.py", "--workdir=/tmp"),
    good=example("srun python train.py", "--chdir=/tmp"),
    clean=(example("srun --cpu-bind=none python train.py", "--nodes=1"),),
)
_NEW = {
    "workdir": "chdir", "cpu_bind": "cpu-bind", "mem_bind": "mem-bind", "share": "oversubscribe",
    "pack-group": "het-group",
}  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Old names in directives and after srun."""
    options = [option for _, option in option_lines(job.directives)]
    for call in job.calls:
        options += [o for layer in call.layers if layer.kind == "srun" for o in layer.options.items]
    for option in options:
        new = _NEW.get(option.written[2:]) if option.written.startswith("--") else None
        if new is not None:
            yield RULE.at(
                option.span,
                f"{option.written} is called --{new} in today's Slurm.",
                help=f"Write --{new}.",
                fix=_fix(option, new),
                severity=WARNING,
            )


def _fix(option: Option, new: str) -> list[Edit]:
    if not option.span.text.startswith(option.written):
        return []
    end = option.span.start + len(option.written)
    return [Edit(option.span.source.span(option.span.start, end), f"--{new}")]
