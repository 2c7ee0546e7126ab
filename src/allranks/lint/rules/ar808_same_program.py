"""A program that does not know of the others, started several times."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.errors import AllranksError
from allranks.lint.finding import WARNING, Finding
from allranks.lint.launch_commands import PYTHON
from allranks.lint.python_file import PythonFile
from allranks.lint.related_files import Launched
from allranks.lint.rule import Rule, example
from allranks.lint.source_text import SourceFile

_JOB = example("srun python train.py", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4")
RULE = Rule(
    id="AR808",
    name="same-program-many-times",
    title="The same training runs once per task",
    why="""srun starts the program in every task. A program that does not ask for its rank runs the same
    training each time, on the same data, into the same files. More tasks need a program that takes part in
    a distributed training.""",
    symptoms=(
        "the same training runs once per task",
        "results are overwritten",
        "adding nodes makes no difference",
    ),
    bad=_JOB,
    good=_JOB,
    files={"train.py": "import torch\nmodel = torch.nn.Linear(1, 1)\ntorch.save(model, 'm.pt')\n"},
    good_files={"train.py": "import torch\nimport os\nrank = int(os.environ['SLURM_PROCID'])\n"},
)


def check_python(file: PythonFile, launch: Launched | None) -> Iterator[Finding]:
    """Scripts in several tasks with no word of ranks, in them or in what they import from beside them."""
    if (
        launch is None
        or launch.launch.kind != PYTHON
        or launch.launch.step is None
        or file.tree is None
    ):
        return
    tasks = launch.job.shape(launch.launch).tasks
    joined = any(
        True
        for word in launch.launch.args
        for each in word.variables()
        if each.name.startswith("SLURM")
    )
    if tasks is None or tasks < 2 or joined or launch.launch.call.background or _joins(file):
        return
    yield RULE.at(
        launch.launch.span,
        f"{file.source.name} knows nothing of ranks: it runs {tasks} times, on the same data and into the same files.",
        help="Ask for one task, or make it distributed (init_process_group, DistributedDataParallel).",
        severity=WARNING,
    )


def _joins(file: PythonFile) -> bool:
    from allranks.core.python_imports import scan

    if file.distributed or file.source.path is None:
        return True
    try:
        files = scan(file.source.path).files
    except AllranksError:
        return True
    for path in files[1:]:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue
        if PythonFile(SourceFile(str(path), text)).distributed:
            return True
    return not ({"torch", "tensorflow", "keras", "jax"} & file.modules)
