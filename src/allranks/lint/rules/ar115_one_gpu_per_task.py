"""With --gpus-per-task=1 every process has its GPU as number 0."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_options import Option
from allranks.lint.finding import NOTE, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PYTHON
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import launches_under

RULE = Rule(
    id="AR115",
    name="one-gpu-per-task",
    title="Each task sees one GPU, as number 0",
    why="""--gpus-per-task=1 shows every task its own GPU only, and there it is cuda:0. A program that takes
    LOCAL_RANK or SLURM_LOCALID as the number of its GPU asks for one that it cannot see. On some systems
    NCCL then cannot use the direct way between the GPUs of a node either.""",
    severity=NOTE,
    symptoms=("invalid device ordinal",),
    bad=example("srun python train.py", "--nodes=1", "--ntasks-per-node=4", "--gpus-per-task=1"),
    good=example("srun python train.py", "--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4"),
    clean=(
        example("srun python train.py", "--ntasks=1", "--gpus-per-task=1"),
        example("srun torchrun --nproc_per_node=4 train.py", "--ntasks=1", "--gpus-per-task=4"),
        example("srun --gpu-bind=none python train.py", "--ntasks=4", "--gpus-per-task=1"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """One GPU per task and several tasks on a node, started by srun."""
    for launch in launches_under(job, "srun"):
        step = launch.step
        if launch.kind != PYTHON or step is None or step.options.has("gpu-bind"):
            continue
        option = step.options.find("gpus-per-task") or job.allocation.options.find("gpus-per-task")
        if job.allocation.options.has("gpu-bind") or option is None or _count(option) != 1:
            continue
        shape = job.shape(launch)
        tasks = shape.tasks_per_node or (shape.tasks if shape.nodes is None else None)
        if tasks is None or tasks < 2:
            continue
        yield RULE.at(
            option.span,
            "Each task sees one GPU, called cuda:0: a program that uses its local rank as the GPU's number "
            "fails in all tasks but the first.",
            help="Ask per node in its place (--gpus-per-node), or use cuda:0 (LOCAL_RANK modulo the number of "
            "visible GPUs) in the program.",
        )
        return


def _count(option: Option) -> int | None:
    text = (option.value.text or "") if option.value is not None else ""
    number = text.rpartition(":")[2]
    return int(number) if number.isdecimal() else None
