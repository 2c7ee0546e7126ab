"""A launcher that reaches all nodes by itself, started in every task."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import DEEPSPEED, HOROVODRUN
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import counted

RULE = Rule(
    id="AR110",
    name="launcher-in-every-task",
    title="The whole training is started once per task",
    why="""mpirun, horovodrun and deepspeed with a host file go to all nodes by themselves and are started
    once. Under srun each task starts the whole training again: they fight for GPUs, ports and files.""",
    severity=ERROR,
    symptoms=("more processes than GPUs", "Address already in use", "CUDA out of memory"),
    bad=example(
        "srun mpirun -np 8 python train.py", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"
    ),
    good=example(
        "mpirun -np 8 python train.py", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"
    ),
    clean=(
        example("srun --ntasks=1 horovodrun -np 4 python train.py", "--nodes=1", "--gres=gpu:4"),
        example("srun deepspeed --num_gpus 4 train.py", "--nodes=1", "--ntasks=1", "--gres=gpu:4"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """srun around another starter, with several tasks."""
    for call in job.calls:
        starters = [layer for layer in call.all_layers if layer.starts]
        if len(starters) < 2 or starters[0].kind != "srun" or starters[1].kind != "mpi":
            continue
        tasks = job.values.shape(starters[0]).tasks
        if tasks is None or tasks > 1:
            yield RULE.at(
                starters[1].span,
                f"srun starts {starters[1].name} {counted(tasks, 'time') if tasks else 'in every task'}, and "
                "each starts all processes.",
                help=f"Remove srun, or remove {starters[1].name}: one of them is enough.",
                severity=ERROR if tasks and call.certain else WARNING,
            )
    for launch in job.launches:
        if (
            launch.kind not in (DEEPSPEED, HOROVODRUN)
            or launch.step is None
            or launch.step.kind != "srun"
        ):
            continue
        tasks = job.shape(launch).tasks
        everywhere = launch.kind == HOROVODRUN or launch.options.has("hostfile", "H", "num-nodes")
        per_node = job.shape(launch).tasks_per_node
        if (
            tasks
            and tasks > 1
            and (everywhere or (per_node or 0) > 1)
            and not launch.options.has("no-ssh")
        ):
            yield RULE.at(
                launch.span,
                f"srun starts {launch.written} {counted(tasks, 'time')}, and each starts the whole training.",
                help="Remove srun: it goes to the other nodes by itself.",
                severity=ERROR if launch.certain else WARNING,
            )
