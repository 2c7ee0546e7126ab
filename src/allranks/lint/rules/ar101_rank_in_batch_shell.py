"""A node's rank that the batch shell replaces is 0 for every node."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import ERROR, NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import ACCELERATE, Launch
from allranks.lint.rule import Rule
from allranks.lint.rules.rule_helpers import RANK_OPTIONS, meets_by_c10d, ranks_of_batch

_HEAD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
"""
RULE = Rule(
    id="AR101",
    name="rank-in-batch-shell",
    title="The node's rank is 0 on every node",
    why="""The batch script runs once, on the first node, and its shell replaces $SLURM_PROCID and
    $SLURM_NODEID by 0 before srun starts anything. Every node then gets rank 0, and with a static
    rendezvous they wait for each other until the time limit. The variable must be replaced in each task:
    inside single quotes that bash -c reads there, or in a worker script.""",
    severity=ERROR,
    symptoms=("hangs at init", "all ranks are rank 0", "several nodes claim to be the master"),
    bad=_HEAD
    + 'srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr="$head" train.py\n',
    good=_HEAD
    + "export head\n"
    + "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$head train.py'\n",
    clean=(
        _HEAD + 'srun bash -c "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=\\$SLURM_NODEID'
        ' --master_addr=$head train.py"\n',
        "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2\nsrun torchrun --nproc_per_node=2"
        " --node_rank=$SLURM_NODEID train.py\n",
        "#!/bin/bash\ntorchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID train.py\n",
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """Find launchers under srun that get a rank from the batch shell."""
    for launch in job.launches:
        option = launch.options.find(RANK_OPTIONS.get(launch.kind, ""))
        if option is None or launch.step is None or launch.step.kind != "srun":
            continue
        for variable in ranks_of_batch(option.value):
            nodes = job.shape(launch).nodes
            if nodes == 1:
                continue
            name, place = option.written, option.span
            if (
                place.source is not variable.span.source
                or not place.start <= variable.span.start < place.end
            ):
                place = variable.span
            hidden = meets_by_c10d(launch)
            certain = launch.certain and not _settings_elsewhere(launch)
            yield RULE.at(
                place,
                f"{name} is ${variable.name} of the batch shell, which is 0: all nodes get rank 0. "
                + _end(hidden, launch),
                help=f"Let each task replace it: srun bash -c '… {name}=${variable.name} …', in single "
                f"quotes, or write \\${variable.name} inside double quotes.",
                severity=NOTE if hidden else ERROR if nodes and certain else WARNING,
            )
            break


def _settings_elsewhere(launch: Launch) -> bool:
    """Whether a settings file may choose another rendezvous."""
    return launch.kind == ACCELERATE and launch.options.has("config-file")


def _end(hidden: bool, launch: Launch) -> str:
    if not hidden and _settings_elsewhere(launch) and not launch.options.has("rdzv-backend"):
        return "They wait for each other and never start, unless the settings file says rdzv_backend: c10d."
    if not hidden:
        return "They wait for each other and never start."
    more = " (and same_network is off)" if launch.kind == ACCELERATE else ""
    return f"It goes well only because the c10d rendezvous gives out the ranks itself{more}."
