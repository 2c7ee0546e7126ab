"""nn.DataParallel stays in one process."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.python_file import PythonFile
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example

_JOB = example("srun python train.py", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:4")
RULE = Rule(
    id="AR801",
    name="data-parallel",
    title="DataParallel does not reach other processes or nodes",
    why="""torch.nn.DataParallel spreads a batch over the GPUs of one process. It knows nothing of other
    processes: on two nodes, or in several tasks, each trains its own model on all the data, and they
    overwrite each other's files. DistributedDataParallel is the one that joins them, and is faster.""",
    symptoms=("the same training runs once per node", "adding nodes makes no difference"),
    bad=_JOB,
    good=_JOB,
    files={
        "train.py": "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(1, 1))\nmodel(torch.ones(1))\n"
    },
    good_files={
        "train.py": "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
        "torch.distributed.init_process_group()\nmodel = DDP(torch.nn.Linear(1, 1))\n"
    },
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Calls of DataParallel, in the light of how the script is started."""
    shape = launch.job.shape(launch.launch) if launch is not None else None
    several = shape is not None and ((shape.nodes or 1) > 1 or (shape.tasks or 1) > 1)
    if launch is not None and not several:
        return
    for call in file.called(
        "nn.DataParallel", "parallel.DataParallel", "data_parallel.DataParallel"
    ):
        nodes = shape.nodes if shape is not None and shape.nodes else 1
        where = f"on {nodes} nodes" if nodes > 1 else "in several tasks"
        yield RULE.at(
            file.span(call),
            f"DataParallel joins the GPUs of one process; {where} every process trains a model of its own."
            if several
            else "DataParallel joins the GPUs of one process only, and is slower than DistributedDataParallel.",
            help="Use DistributedDataParallel, with one process per GPU.",
            severity=WARNING if several else NOTE,
        )
        return
