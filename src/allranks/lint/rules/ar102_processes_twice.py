"""Tasks per node and processes per node are multiplied."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PER_NODE, Launch
from allranks.lint.rule import Rule
from allranks.lint.rules.rule_helpers import counted, processes, told_elsewhere

_HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n"
_RUN = (
    "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
    "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 "
    "--rdzv_id=$SLURM_JOB_ID train.py\n"
)
RULE = Rule(
    id="AR102",
    name="processes-twice",
    title="Each node gets its processes several times",
    why="""srun starts one launcher for every task, and every launcher starts its own processes. With a
    task for each GPU and a launcher that also starts a process for each GPU, their numbers are
    multiplied: the ranks collide, or wait for a rendezvous that is already full.""",
    severity=ERROR,
    symptoms=(
        "hangs at init",
        "more processes than GPUs",
        "Duplicate GPU detected",
        "CUDA out of memory",
    ),
    bad=_HEAD + "#SBATCH --ntasks-per-node=4\n" + _RUN,
    good=_HEAD + "#SBATCH --ntasks-per-node=1\n" + _RUN,
    clean=(
        _HEAD
        + "#SBATCH --ntasks-per-node=4\n"
        + _RUN.replace("srun ", "srun --ntasks-per-node=1 "),
        _HEAD + "#SBATCH --ntasks-per-node=4\n"
        "srun torchrun --nnodes=8 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=$H:1 train.py\n",
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=4 --gres=gpu:4\ntorchrun --nproc_per_node=4 train.py\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Launchers that want one copy per node, started in several tasks of a node."""
    for launch in job.launches:
        if launch.kind not in PER_NODE or launch.step is None:
            continue
        made = job.processes(launch)
        per_node = made.shape.tasks_per_node
        if per_node is None or per_node < 2 or made.expected_nodes == made.shape.tasks:
            continue
        unsure = made.each is None or made.expected_nodes is None
        if unsure and (made.each == 1 or told_elsewhere(launch)):
            continue
        gpus = job.allocation.gpus_per_node
        many = made.each is not None and bool(gpus) and per_node * made.each > (gpus or 0)
        surely = many or (
            made.expected_nodes is not None and made.shape.tasks != made.expected_nodes
        )
        yield RULE.at(
            launch.span,
            _message(job, launch, gpus),
            help="Give srun one task per node: srun --ntasks-per-node=1 …, or "
            "#SBATCH --ntasks-per-node=1.",
            severity=ERROR if surely and launch.certain else WARNING,
        )


def _message(job: JobScript, launch: Launch, gpus: int | None) -> str:
    made = job.processes(launch)
    nodes, tasks, total = made.shape.nodes, made.shape.tasks_per_node, made.total
    words = f"{counted(nodes or 1, 'node')} × {counted(tasks or 1, 'task')} × {launch.written} "
    if made.each is None or total is None:
        return f"srun starts {launch.written} {tasks} times on each node; one is enough."
    have = f" for {counted((nodes or 1) * gpus, 'GPU')}" if gpus else ""
    expected = f" The ranks expect {made.expected_total}." if made.expected_total else ""
    return f"{words}{made.each} = {processes(total)}{have}.{expected}"
