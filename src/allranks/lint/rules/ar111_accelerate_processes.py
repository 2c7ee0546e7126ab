"""accelerate's --num_processes counts all nodes together."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE
from allranks.lint.rule import Rule, example

_RUN = (
    "srun bash -c 'accelerate launch --num_processes={} --num_machines=2 --machine_rank=$SLURM_NODEID "
    "--main_process_ip=$head --main_process_port=29500 train.py'"
)
RULE = Rule(
    id="AR111",
    name="accelerate-processes",
    title="--num_processes is the number of all processes, on all nodes",
    why="""accelerate divides --num_processes by --num_machines. With the number of one node's GPUs each node
    starts only a part of its processes, and the other GPUs idle; a number that cannot be divided is
    refused or rounded.""",
    severity=WARNING,
    symptoms=("GPUs idle", "the world size is too small"),
    bad=example(_RUN.format(4), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    good=example(_RUN.format(8), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    clean=(
        example("accelerate launch --num_processes=2 train.py", "--nodes=1", "--gres=gpu:2"),
        example(_RUN.format("$N"), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """The number against machines × GPUs."""
    gpus = job.allocation.gpus_per_node
    for launch in job.launches:
        option = launch.options.find("num-processes")
        if launch.kind != ACCELERATE or option is None or not gpus:
            continue
        made = job.processes(launch)
        total = job.values.number(option.value)
        machines = made.expected_nodes
        if machines is None or machines < 2 or total is None or total == machines * gpus:
            continue
        if total == gpus or total % machines:
            yield RULE.at(
                option.span,
                f"{total} processes over {machines} machines are {total / machines:g} on each, but a node "
                f"has {gpus} GPUs.",
                help=f"Write --num_processes={machines * gpus}, or $((SLURM_NNODES * {gpus})).",
            )
