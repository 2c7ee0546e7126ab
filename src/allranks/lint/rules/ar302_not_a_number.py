"""Slurm's variables that look like numbers and are not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import Launch
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Arithmetic, Variable, Word
from allranks.lint.source_text import Span

RULE = Rule(
    id="AR302",
    name="not-a-number",
    title="This variable of Slurm is not a plain number",
    why="""SLURM_TASKS_PER_NODE is "4(x2)" on two nodes, SLURM_JOB_CPUS_PER_NODE likewise.
    SLURM_GPUS_PER_NODE repeats the option, type and all: "A100:4". SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES
    are lists: "0,1,2,3". As a number of processes, or in a calculation, they stop the script.""",
    severity=ERROR,
    symptoms=("invalid literal for int()", "syntax error in expression", "Unsupported nproc_per_node value"),
    bad=example("srun torchrun --nnodes=2 --nproc_per_node=$SLURM_TASKS_PER_NODE --rdzv_endpoint=$H:1 train.py",
                "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    good=example("srun torchrun --nnodes=2 --nproc_per_node=$SLURM_GPUS_ON_NODE --rdzv_endpoint=$H:1 train.py",
                 "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    clean=(
        example("torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE train.py", "--gpus-per-node=4"),
        example("torchrun --nproc_per_node=$SLURM_TASKS_PER_NODE train.py", "--nodes=1", "--ntasks-per-node=4"),
        example("echo $SLURM_TASKS_PER_NODE $SLURM_JOB_GPUS\nsrun python train.py", "--nodes=2"),
    ),
)  # fmt: skip
_COUNTS = ("nproc-per-node", "num-processes", "nnodes", "np", "num-gpus", "n")
_LISTS = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODES")


def check(job: JobScript) -> Iterator[Finding]:
    """Such variables as a count of a launcher, or in arithmetic."""
    reported: set[tuple[str, int]] = set()
    for variable, place, certain in _uses(job):
        shown = _shown(job, variable)
        if shown is None or (variable.name, place.start) in reported:
            continue
        reported.add((variable.name, place.start))
        yield RULE.at(
            place,
            f"{variable.name} is a text like '{shown}' here, not a number.",
            help="Use $SLURM_GPUS_ON_NODE for the GPUs of a node, $SLURM_NTASKS for all tasks.",
            severity=ERROR if certain else WARNING,
        )


def _shown(job: JobScript, variable: Variable) -> str | None:
    ask = job.allocation
    if variable.operator:
        return None
    if variable.name in ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE") and ask.several_nodes:
        return f"{ask.tasks_per_node or 4}(x{ask.nodes or 2})"
    if variable.name == "SLURM_GPUS_PER_NODE" and ":" in (ask.text("gpus-per-node") or ""):
        return ask.text("gpus-per-node")
    if variable.name in _LISTS and (ask.gpus_per_node or 0) > 1 and not variable.choices:
        return "0,1"
    return None


def _uses(job: JobScript) -> Iterator[tuple[Variable, Span, bool]]:
    for launch in job.launches:
        for name in _COUNTS:
            option = launch.options.find(name)
            for variable in _bare(option.value if option is not None else None):
                yield variable, variable.span, launch.certain
        yield from _mpi(launch)
    for call in job.calls:
        for item in call.assignments:
            for part in item.value.parts if item.value is not None else ():
                if isinstance(part, Arithmetic):
                    for term in part.terms:
                        if isinstance(term, Variable):
                            yield term, term.span, call.certain


def _mpi(launch: Launch) -> Iterator[tuple[Variable, Span, bool]]:
    step = launch.step
    option = step.options.find("np", "n", "ntasks", "ntasks-per-node") if step is not None else None
    for variable in _bare(option.value if option is not None else None):
        yield variable, variable.span, launch.certain


def _bare(word: Word | None) -> Iterator[Variable]:
    """The variable that is the whole word."""
    part = word.parts[0] if word is not None and len(word.parts) == 1 else None
    if isinstance(part, Variable) and re.match(r"^[A-Z_]+$", part.name):
        yield part
