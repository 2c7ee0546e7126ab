"""The command that starts the ranks: srun with a task each, or a launcher that reaches the nodes itself."""

from __future__ import annotations

from allranks.core.shell import Raw, Word, Words, fold, join
from allranks.errors import JobError
from allranks.job.environments import cleans, open_names, pyxis_options
from allranks.job.launchers import LAUNCHERS, SLURM
from allranks.job.launchers.horovodrun import table_lines
from allranks.job.plan import Plan
from allranks.job.sbatch.attempt_lines import requeues
from allranks.job.sbatch.binding_lines import srun_binding
from allranks.job.sbatch.execution_places import (
    batch_python,
    container_words,
    is_pyxis,
    run_folder,
    uses_agent,
)
from allranks.job.sbatch.rendezvous_lines import INTERFACE


def launch_lines(plan: Plan, step: Words) -> list[str]:
    """The line that starts the ranks, and what must stand around it; ``step``: further words for srun."""
    launcher = LAUNCHERS[plan.launcher]
    if launcher.through_srun:
        command = join([*_srun(plan, step), "bash", "-c", *_call(plan)])
    else:
        _refuse_cleaning(plan)
        start, *rest = launcher.words(plan, SLURM)
        command = fold([start, *rest[:-1], [*container_words(plan), *rest[-1]]])
    network = [] if launcher.through_srun or plan.shape.nodes == 1 else INTERFACE
    lines = [
        *network,
        *table_lines(plan, batch_python(plan)),
        *launcher.script_lines(plan),
        "code=0",
    ]
    if is_pyxis(plan):
        lines.append("# The image's own variables win over ours, so these are said again inside.")
    return [*lines, *_waited(plan, command)]


def _waited(plan: Plan, command: str) -> list[str]:
    """Behind it in the foreground; where the script itself listens to signals, in the background."""
    options, _, signal = (plan.job.signal or "").rpartition(":")
    passing = []
    if "B" in options:
        name = signal.partition("@")[0].removeprefix("SIG")
        pass_on = f"trap 'passed=1; kill -{name} \"$launch\"' {name}"
        passing = [f"{pass_on}  # srun passes it on to every task"]
    if not passing and not requeues(plan):
        return [f"{command} || code=$?"]
    return [
        *(_LISTENING if requeues(plan) else []),
        f"{command} &",
        "launch=$!",
        *passing,
        "passed=1",
        'while ((passed)); do passed=0 code=0; wait "$launch" || code=$?; done  # a signal ends a wait',
        *(["trap 'terminated=1' TERM"] if requeues(plan) else []),
    ]


_LISTENING = [
    "trap on_term TERM",
    "if [[ -n $terminated ]]; then on_term; fi  # before the launch",
    "if [[ -n $requeued ]]; then exit 0; fi",
]


def _call(plan: Plan) -> list[Word]:
    """How a task's shell calls the function; pyxis lets the image's variables win, so ours come as words."""
    if not is_pyxis(plan):
        return ["task"]
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    names += [name for name in open_names(plan.job) if name not in names]
    library = f' PYTHONPATH="{run_folder(plan)}/lib${{PYTHONPATH:+:$PYTHONPATH}}"'
    export = f'export "$@"{library if uses_agent(plan) else ""}; task'
    return [export, "task", *(Raw(f'"{name}=${name}"') for name in names)]


def _refuse_cleaning(plan: Plan) -> None:
    if cleans(plan.job):
        raise JobError(
            f"{join(plan.job.container_args)} with --launcher {plan.launcher}: the ranks know each other by "
            "variables that would not reach them.\nLeave it out, or use --launcher srun."
        )


def _srun(plan: Plan, step: Words) -> list[Word]:
    job, shape = plan.job, plan.shape
    words: list[Word] = ["srun", "--kill-on-bad-exit=1", "--export=ALL", *step]
    if shape.cpus_per_task:  # Slurm 22.05 to 23.02 does not inherit it
        words.append(f"--cpus-per-task={shape.cpus_per_task}")
    if shape.tasks_per_node > 1:
        words.append(f"--distribution={job.distribution or 'block'}")
    words += srun_binding(plan)
    if job.mpi and plan.launcher == "srun":
        words.append(f"--mpi={job.mpi}")
    if is_pyxis(plan):
        own = run_folder(plan)
        folder = f",{own}:{own}" if uses_agent(plan) else ""
        words += pyxis_options(job, Raw(f'"$PWD:$PWD{folder}"'))
    return words
