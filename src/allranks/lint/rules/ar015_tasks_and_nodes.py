"""Numbers of nodes and tasks that do not agree."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR015",
    name="tasks-and-nodes",
    title="Nodes, tasks and tasks per node do not agree",
    why="""Where --ntasks is given, --ntasks-per-node is only the most that a node may get. Fewer tasks than
    nodes times tasks per node leave nodes unevenly filled, or unused: srun starts --ntasks processes.""",
    symptoms=("only one node is used", "fewer processes than expected"),
    bad=example(
        "srun python train.py", "--nodes=2", "--ntasks=4", "--ntasks-per-node=4", "--gres=gpu:4"
    ),
    good=example(
        "srun python train.py", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gres=gpu:4"
    ),
    clean=(
        example("srun python train.py", "--ntasks=4", "--ntasks-per-node=4"),
        example("srun python train.py", "--nodes=2", "--ntasks=8"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """The three numbers, where all are given; and fewer tasks than nodes."""
    ask = job.allocation
    nodes, tasks, per = ask.number("nodes"), ask.number("ntasks"), ask.number("ntasks-per-node")
    option = ask.options.find("ntasks")
    if option is None or nodes is None or tasks is None or not ask.known:
        return
    if per is not None and nodes * per != tasks:
        few = "more than the nodes may take" if tasks > nodes * per else f"not {nodes * per}"
        yield RULE.at(
            option.span,
            f"{nodes} nodes × {per} tasks per node are {nodes * per}, but --ntasks says {tasks}: "
            f"srun starts {tasks}, {few}.",
            help=f"Remove --ntasks, or write --ntasks={nodes * per}.",
            severity=WARNING,
        )
    elif tasks < nodes:
        yield RULE.at(
            option.span,
            f"{tasks} task(s) cannot fill {nodes} nodes: {nodes - tasks} of them get nothing to do.",
            help=f"Write --ntasks={nodes}, or --ntasks-per-node=1 in its place.",
            severity=WARNING,
        )
