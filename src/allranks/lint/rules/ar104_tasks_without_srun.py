"""Several tasks are asked for, and the program runs once."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.command_calls import Call
from allranks.lint.finding import NOTE, WARNING, Finding
from allranks.lint.job_script import JobScript
from allranks.lint.launch_commands import PYTHON
from allranks.lint.rule import Rule, example
from allranks.lint.rules.rule_helpers import starts_elsewhere

RULE = Rule(
    id="AR104",
    name="tasks-without-srun",
    title="The tasks are asked for, but the program runs once",
    why="""--ntasks reserves room for processes; it starts none. A program that the batch script calls
    without srun runs once, on the first node, however many tasks were asked for. A training that believes
    SLURM_NTASKS waits for ranks that nobody starts.""",
    symptoms=("only one GPU is used", "hangs at init", "fewer processes than expected"),
    bad=example("python train.py", "--nodes=1", "--ntasks-per-node=4", "--gres=gpu:4"),
    good=example("srun python train.py", "--nodes=1", "--ntasks-per-node=4", "--gres=gpu:4"),
    clean=(
        example("torchrun --nproc_per_node=4 train.py", "--ntasks-per-node=4", "--gres=gpu:4"),
        example("python prepare.py\nsrun python train.py", "--ntasks=4", "--gres=gpu:4"),
        example("mpirun -np 4 python train.py", "--ntasks=4"),
        example("python train.py", "--ntasks=1", "--gres=gpu:1"),
        example("bash run.sh", "--ntasks=4", "--gres=gpu:4"),
    ),
)


def _prints(call: Call) -> bool:
    """``head=$(srun … hostname)``: a step that starts no part of the training."""
    return call.inside == "substitution" or call.name in ("hostname", "nvidia-smi", "echo", "date")


def check(job: JobScript) -> Iterator[Finding]:
    """Python in the batch shell, where nothing in the script starts tasks."""
    ask = job.allocation
    tasks = ask.tasks
    if not tasks or tasks < 2 or ask.several_nodes or starts_elsewhere(job) or not job.is_batch:
        return
    if any(launch.step is not None or launch.kind != PYTHON for launch in job.launches):
        return
    if any(layer.starts for call in job.calls if not _prints(call) for layer in call.layers):
        return
    if [word for word in job.trace.unread if not (word.text or "").endswith("activate")]:
        return
    option = ask.options.find("ntasks", "ntasks-per-node", "ntasks-per-gpu")
    for launch in job.launches[:1]:
        if launch.call.loop or launch.call.background or option is None:
            continue
        gpus = ask.gpus_per_node or 0
        yield RULE.at(
            launch.span,
            f"The job has {tasks} tasks, but python runs once: without srun nothing starts the others.",
            help="Write srun before it, or ask for one task: --ntasks=1"
            + ("" if gpus > 1 else f" --cpus-per-task={tasks}")
            + ".",
            severity=WARNING if gpus > 1 else NOTE,
            related=[option.span],
        )
