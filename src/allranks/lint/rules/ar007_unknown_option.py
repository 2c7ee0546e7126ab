"""Options of sbatch that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.errors import nearest
from allranks.lint.command_options import Option
from allranks.lint.directives import option_lines
from allranks.lint.finding import ERROR, Edit, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.slurm_options import REQUIRED, SBATCH, SITE_OPTIONS

RULE = Rule(
    id="AR007",
    name="misspelled-option",
    title="sbatch has no such option",
    why="""sbatch refuses a script with an option that it does not know ("unrecognized option"). Site
    plugins add options of their own, so only words close to a known option are reported.""",
    severity=ERROR,
    symptoms=("sbatch: unrecognized option", "sbatch refuses the script"),
    bad=example("srun python train.py", "--ntask-per-node=4"),
    good=example("srun python train.py", "--ntasks-per-node=4"),
    clean=(
        example(
            "srun python train.py", "--ntasks-per-n=4", "--environment=my.toml", "--uenv=pytorch"
        ),
        example(
            "srun python train.py",
            "--gpus-per-node=4 --image=a/b:c --module=gpu",
            "--tasks-per-node=2",
        ),
    ),
)
_COMMON = {
    "gpu-per-node": "gpus-per-node", "gpu": "gpus", "cpu-per-task": "cpus-per-task", "cpus": "cpus-per-task",
    "name": "job-name", "ntask": "ntasks", "node": "nodes", "task-per-node": "ntasks-per-node",
    "out": "output", "err": "error", "num-nodes": "nodes", "cores-per-task": "cpus-per-task",
    "memory": "mem", "queue": "partition", "walltime": "time", "ncpus": "cpus-per-task",
}  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """Long options that are no beginning of a known one."""
    for _, option in option_lines(job.directives):
        name = option.written[2:] if option.written.startswith("--") else ""
        if not name or SBATCH.long(name) is not None or name in SITE_OPTIONS:
            continue
        starts = [each for each in SBATCH.kinds if each.startswith(name)]
        meant = _COMMON.get(name) or (nearest(name, SBATCH.kinds) if not starts else None)
        if meant is None or not _alike(name, meant):
            continue
        yield RULE.at(
            option.span,
            f"sbatch knows no option --{name} and refuses the script.",
            help=f"You may mean --{meant}.",
            fix=_fix(option, name, meant),
        )


def _alike(name: str, meant: str) -> bool:
    import difflib

    return name in _COMMON or difflib.SequenceMatcher(None, name.lower(), meant).ratio() > 0.84


def _fix(option: Option, name: str, meant: str) -> list[Edit]:
    if (SBATCH.kind(meant) == REQUIRED) != (option.value is not None):
        return []
    start = option.span.start + 2
    return [Edit(option.span.source.span(start, start + len(name)), meant)]
