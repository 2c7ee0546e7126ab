"""The launcher expects another number of nodes than it gets."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PER_NODE
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import alone, counted

_RUN = "srun torchrun --nnodes={} --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$H:29500 train.py"
RULE = Rule(
    id="AR105",
    name="number-of-nodes",
    title="The launcher waits for another number of nodes",
    why="""torchrun and accelerate start when as many copies have joined the rendezvous as they expect
    (--nnodes, --num_machines). With fewer they wait until the time limit; those that are too many fail
    to join, or stop the others.""",
    severity=ERROR,
    symptoms=("hangs at init", "RendezvousTimeoutError", "The client socket has timed out"),
    bad=example(_RUN.format(4), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    good=example(_RUN.format("$SLURM_NNODES"), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    clean=(
        example(_RUN.format("1:4"), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
        example(_RUN.format("$1"), "--nodes=2", "--ntasks-per-node=1"),
        example(
            "for n in a b; do\nsrun -N1 -n1 -w $n torchrun --nnodes=2 train.py &\ndone\nwait",
            "--nodes=2", "--ntasks-per-node=1",
        ),
    ),
)  # fmt: skip


def check(job: JobScript) -> Iterator[Finding]:
    """``--nnodes`` and ``--num_machines`` against the copies that start."""
    for launch in job.launches:
        option = launch.options.find("nnodes", "num-machines")
        if launch.kind not in PER_NODE or option is None or not alone(job, launch):
            continue
        made = job.processes(launch)
        expected, tasks = made.expected_nodes, made.shape.tasks
        per_node = made.shape.tasks_per_node
        if (
            expected is None
            or tasks is None
            or expected == tasks
            or (per_node != 1 and launch.step is not None)
        ):
            continue
        if launch.step is None:
            if not job.is_batch or job.allocation.several_nodes or expected == 1:
                continue
            given = job.allocation.options.has("nodes")
            yield RULE.at(
                option.span,
                f"{launch.written} waits for {counted(expected, 'node')}, but the job has one.",
                help=f"Ask for them, #SBATCH --nodes={expected}, and start it with srun; or write {option.written}=1.",
                severity=ERROR if given and launch.certain else NOTE,
            )
            continue
        if expected == 1:
            continue  # trainings on their own: another rule
        yield RULE.at(
            option.span,
            f"srun starts {launch.written} {tasks} times, but it expects {counted(expected, 'node')}: "
            + ("it waits for the others." if expected > tasks else "some of them are too many."),
            help=f"Write {option.written}=$SLURM_NNODES.",
            severity=ERROR if launch.certain else WARNING,
        )
