"""init_process_group reads variables that srun does not set."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from allranks.lint.finding import ERROR, WARNING, Finding
from allranks.lint.launch_commands import PYTHON
from allranks.lint.python_file import PythonFile, constant, keyword
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import sources_unknown

_JOB = example("export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun {}",
               "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4")  # fmt: skip
RULE = Rule(
    id="AR807",
    name="rank-not-set",
    title="srun does not set RANK and WORLD_SIZE",
    why="""init_process_group() reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. torchrun sets them; srun
    sets SLURM_PROCID and SLURM_NTASKS. Started by plain srun the script stops at once, unless the command
    or the script translates one into the other.""",
    severity=ERROR,
    symptoms=("environment variable RANK expected, but not set",),
    bad=_JOB.format("python train.py"),
    good=_JOB.format("bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS python train.py'"),
    files={
        "train.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\nprint(dist.get_rank())\n"
    },
    clean=(
        _JOB.format(
            "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$MASTER_ADDR:1 train.py"
        ),
    ),
)
_TRANSLATE = ("SLURM_PROCID", "'RANK'] =", '"RANK"] =', "'RANK']=", '"RANK"]=', "PMI_RANK", "OMPI_COMM", "mpi4py",
              "idr_torch", "submitit", "allranks", "lightning", "accelerate", "deepspeed", "hostlist")  # fmt: skip


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Scripts under plain srun that leave the ranks to the environment."""
    if launch is None or launch.launch.kind != PYTHON or launch.launch.step is None:
        return
    if launch.launch.step.kind != "srun" or _given(launch) or file.mentions(*_TRANSLATE):
        return
    if sources_unknown(launch.job):
        return
    for call in file.called("init_process_group"):
        if not _from_environment(call):
            continue
        tasks = launch.job.shape(launch.launch).tasks
        yield RULE.at(
            file.span(call),
            "This reads RANK and WORLD_SIZE from the environment, and neither srun nor the job script sets them.",
            help="Start it with srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS "
            "LOCAL_RANK=$SLURM_LOCALID python …', or with torchrun.",
            severity=ERROR if launch.launch.certain and tasks else WARNING,
            related=[launch.launch.span],
        )
        return


def _given(launch: Launched) -> bool:
    call = launch.launch.call
    names = {item.name for item in call.assignments} | set(call.env)
    return "RANK" in names


def _from_environment(call: ast.Call) -> bool:
    if (
        keyword(call, "rank") is not None
        or keyword(call, "store") is not None
        or len(call.args) > 2
    ):
        return False
    if (
        any(each.arg is None for each in call.keywords)
        or constant(keyword(call, "backend")) == "mpi"
    ):
        return False
    method = keyword(call, "init_method")
    return method is None or constant(method) == "env://"
