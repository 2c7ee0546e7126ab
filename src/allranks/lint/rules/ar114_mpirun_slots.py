"""mpirun is asked for more processes than the job has tasks."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.finding import Finding
from allranks.lint.job_script import JobScript
from allranks.lint.rule import Rule, example

RULE = Rule(
    id="AR114",
    name="mpirun-slots",
    title="mpirun has fewer slots than processes",
    why="""Open MPI takes one slot for each task of the job, and refuses more processes than that ("There are
    not enough slots available"). GPUs and CPUs do not make slots; --ntasks and --ntasks-per-node do.""",
    symptoms=("There are not enough slots available in the system",),
    bad=example("mpirun -np 8 python train.py", "--nodes=2", "--gpus-per-node=4"),
    good=example(
        "mpirun -np 8 python train.py", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"
    ),
    clean=(
        example("mpirun -np 8 --oversubscribe python train.py", "--nodes=2"),
        example("mpirun -np 8 -H a:4,b:4 python train.py", "--nodes=2"),
        example("mpirun python train.py", "--nodes=2"),
    ),
)


def check(job: JobScript) -> Iterator[Finding]:
    """``-np`` against the tasks of the job."""
    tasks = job.allocation.tasks
    if not job.is_batch or tasks is None:
        return
    for call in job.calls:
        layer = next((each for each in call.layers if each.kind == "mpi"), None)
        if layer is None or layer.name in ("ibrun", "aprun"):
            continue
        option = layer.options.find("np", "n", "c")
        wanted = job.values.number(option.value) if option is not None else None
        words = " ".join(word.shown for word in layer.words)
        if option is None or wanted is None or wanted <= tasks or "oversubscribe" in words:
            continue
        if layer.options.has(
            "H", "host", "hosts", "hostfile", "machinefile", "f", "ppn", "perhost"
        ):
            continue
        yield RULE.at(
            option.span,
            f"{wanted} processes, but the job has {tasks} task(s): Open MPI has no room for them.",
            help=f"Ask for {wanted} tasks: #SBATCH --ntasks={wanted}.",
        )
