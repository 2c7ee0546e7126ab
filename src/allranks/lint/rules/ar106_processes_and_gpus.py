"""More processes than GPUs, or GPUs that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import DEEPSPEED, OTHER, PER_NODE, PYTHON, Launch
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import counted, processes
from allranks.lint.source_text import Span

RULE = Rule(
    id="AR106",
    name="processes-and-gpus",
    title="Processes and GPUs of a node do not match",
    why="""A training has one process for each GPU. NCCL refuses two processes on one GPU ("Duplicate GPU
    detected"), or they share its memory; a GPU without a process is paid for and idle.""",
    severity=ERROR,
    symptoms=(
        "Duplicate GPU detected",
        "invalid device ordinal",
        "GPUs idle",
        "CUDA out of memory",
    ),
    bad=example("torchrun --standalone --nproc_per_node=4 train.py", "--nodes=1", "--gres=gpu:2"),
    good=example("torchrun --standalone --nproc_per_node=2 train.py", "--nodes=1", "--gres=gpu:2"),
    clean=(
        example(
            "torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py", "--gres=gpu:2"
        ),
        example("torchrun --standalone --nproc_per_node=8 train.py", "--nodes=1", "--exclusive"),
        example("srun python train.py", "--ntasks-per-node=4", "--gpus-per-task=1"),
        example("srun python train.py --nprocs 2", "--ntasks=1", "--gpus-per-task=2"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Processes on a node against its GPUs, where both are known."""
    gpus = job.allocation.gpus_per_node
    if not gpus or not job.is_batch:
        return
    for launch in job.launches:
        if launch.kind == OTHER:
            continue
        if launch.step is not None and launch.step.options.has(
            "gpus-per-task", "gres", "gpus", "gpus-per-node"
        ):
            continue
        if launch.step is not None and launch.step.kind == "mpi":
            yield from _by_mpi(job, launch, gpus)
            continue
        here = _on_a_node(job, launch)
        if here is None or here == gpus:
            continue
        if here > gpus:
            yield from _many(launch, here, gpus)
        elif _meant_to_fill(launch, here):
            yield RULE.at(
                _place(launch),
                f"{processes(here)} on a node with {counted(gpus, 'GPU')}: "
                f"{gpus - here} stay idle.",
                help=f"Start {gpus}, or ask for {counted(here, 'GPU')} per node.",
                severity=WARNING
                if launch.kind in PER_NODE and launch.certain and here > 1
                else NOTE,
            )


def _by_mpi(job: JobScript, launch: Launch, gpus: int) -> Iterator[Finding]:
    """mpirun counts all nodes together."""
    total, nodes = job.shape(launch).tasks, job.allocation.nodes
    if launch.kind != PYTHON or not total or not nodes or total < 2 or total == gpus * nodes:
        return
    idle = gpus * nodes - total
    yield RULE.at(
        launch.step.span if launch.step is not None else launch.span,
        f"{processes(total)} for {counted(gpus * nodes, 'GPU')}: "
        + (f"{idle} stay idle." if idle > 0 else "some share one."),
        help=f"Start {processes(gpus * nodes)}, or ask for as many GPUs as there are processes.",
        severity=NOTE,
    )


def _on_a_node(job: JobScript, launch: Launch) -> int | None:
    made = job.processes(launch)
    per_node = made.shape.tasks_per_node
    if launch.kind in PER_NODE:
        if per_node == 1:
            return made.each
        if made.expected_nodes != made.shape.tasks or per_node is None or made.each is None:
            return None  # reported by the rule about multiplied processes
        return per_node * made.each
    if launch.kind == DEEPSPEED and (per_node or 1) == 1:
        return job.values.number(launch.options.value("num-gpus"))
    return per_node if launch.kind == PYTHON and launch.step is not None else None


def _many(launch: Launch, here: int, gpus: int) -> Iterator[Finding]:
    python = launch.kind == PYTHON
    yield RULE.at(
        _place(launch),
        f"{here} processes start on a node with {counted(gpus, 'GPU')}: some share one, or find none.",
        help=f"Start {gpus} per node, or ask for {here} GPUs.",
        severity=NOTE
        if python and gpus == 1
        else WARNING
        if python or not launch.certain
        else ERROR,
    )


def _meant_to_fill(launch: Launch, here: int) -> bool:
    """One process may use several GPUs by itself; two are meant to have one each."""
    if launch.call.loop or launch.call.background or "CUDA_VISIBLE_DEVICES" in launch.call.env:
        return False
    if any(item.name == "CUDA_VISIBLE_DEVICES" for item in launch.call.assignments):
        return False
    return here > 1 or launch.kind in PER_NODE


def _place(launch: Launch) -> Span:
    option = launch.options.find("nproc-per-node", "num-processes", "num-gpus")
    return option.span if option is not None else launch.span
