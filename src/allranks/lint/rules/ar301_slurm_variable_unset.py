"""Variables that Slurm sets only when the option was given."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import TASK, UNKNOWN
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example
from allranks.lint.shell.model import Variable

RULE = Rule(
    id="AR301",
    name="slurm-variable-unset",
    title="Slurm does not set this variable in this job",
    why="""Some of Slurm's variables exist only when the very option was given: SLURM_NTASKS_PER_NODE needs
    --ntasks-per-node, SLURM_CPUS_PER_TASK needs --cpus-per-task, SLURM_GPUS_PER_NODE needs
    --gpus-per-node (not --gres). Else they are empty: $((2 * $X)) stops with "operand expected", a world
    size is empty or 0.""",
    symptoms=("operand expected", "WORLD_SIZE is empty", "expected one argument"),
    bad=example("export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))\nsrun python train.py",
                "--nodes=2", "--ntasks=8", "--gres=gpu:4"),
    good=example("export WORLD_SIZE=$SLURM_NTASKS\nsrun python train.py", "--nodes=2", "--ntasks=8", "--gres=gpu:4"),
    clean=(
        example("echo $SLURM_NTASKS_PER_NODE\nsrun python train.py", "--nodes=2"),
        example("X=${SLURM_CPUS_PER_TASK:-4}\nsrun -c $X python train.py", "--nodes=2"),
        example("export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python train.py", "-c 4"),
        example("export N=$SLURM_NTASKS_PER_NODE\nsrun python -n $N train.py", "--tasks-per-node=4"),
        "#!/bin/bash\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython train.py\n",
    ),
)  # fmt: skip
NEEDS = {
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_GPUS": "gpus",
    "SLURM_MEM_PER_CPU": "mem-per-cpu",
    "SLURM_MEM_PER_GPU": "mem-per-gpu",
    "SLURM_ARRAY_TASK_ID": "array",
}
_PRINTS = frozenset({"echo", "printf", "[", "[[", "test", "logger"})
_INSTEAD = {
    "SLURM_GPUS_PER_NODE": "SLURM_GPUS_ON_NODE",
    "SLURM_NTASKS_PER_NODE": "SLURM_NTASKS / SLURM_NNODES",
}


def check(job: JobScript) -> Iterator[Finding]:
    """Reads of such variables where the option is not among the directives."""
    if not job.is_batch or not job.allocation.known or len(job.directives.lines) < 2:
        return
    set_here = {item.name for call in job.calls for item in call.assignments}
    reported: set[str] = set()
    for call, variable in job.reads():
        option = NEEDS.get(variable.name)
        if option is None or variable.name in reported or variable.name in set_here:
            continue
        if call.first in _PRINTS or variable.operator or _given(job, variable, option):
            continue
        reported.add(variable.name)
        instead = _INSTEAD.get(variable.name)
        yield RULE.at(
            variable.span,
            f"{variable.name} is set only with --{option}, which this script does not give.",
            help=f"Add #SBATCH --{option}=…" + (f", or use {instead}." if instead else "."),
            severity=NOTE if option in ("array", "cpus-per-task") else WARNING,
        )


def _given(job: JobScript, variable: Variable, option: str) -> bool:
    if job.allocation.options.has(option):
        return True
    shell = variable.shell
    if shell is None or shell.kind == UNKNOWN:
        return True
    return shell.kind == TASK and shell.step is not None and shell.step.options.has(option)
