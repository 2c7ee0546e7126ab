"""The launch of the ranks: srun or a launcher that reaches the nodes itself, and the CPUs of each rank."""

from __future__ import annotations

from allranks.core.shell import Raw, Word, Words, fold, join
from allranks.errors import JobError
from allranks.job.environments import (
    batch_python,
    cleans,
    container_words,
    open_names,
    pyxis_options,
    run_folder,
)
from allranks.job.launchers.horovodrun import rendezvous_server_lines
from allranks.job.plan import Plan
from allranks.job.sbatch.rendezvous_lines import INTERFACE


def launch_lines(plan: Plan, step: Words) -> list[str]:
    """Return the lines that start the ranks and wait for them; ``step``: further words for srun."""
    launcher = plan.launcher
    if launcher.uses_srun:
        command = join([*_srun(plan, step), "bash", "-c", *_call(plan)])
    else:
        _refuse_cleaning(plan)
        start, *rest = launcher.task_words(plan)
        command = fold([start, *rest[:-1], [*container_words(plan), *rest[-1]]])
    network = [] if launcher.uses_srun or plan.shape.nodes == 1 else INTERFACE
    lines = [
        *network,
        *rendezvous_server_lines(plan, batch_python(plan)),
        *launcher.script_lines(plan),
        "code=0",
    ]
    if plan.uses_pyxis:
        lines.append(
            "# Variables of the image replace those of the job, so these are set again inside."
        )
    return [*lines, *_wait(plan, command)]


def _wait(plan: Plan, command: str) -> list[str]:
    """Wait in the foreground; in the background if the script itself handles signals."""
    options, _, signal = (plan.job.signal or "").rpartition(":")
    passing = []
    if "B" in options:
        name = signal.partition("@")[0].removeprefix("SIG")
        # Before the launch, and by $!: a signal may come before the next line has run.
        pass_on = f"trap 'passed=1; kill -{name} \"$!\" || :' {name}"
        passing = [f"{pass_on}  # srun passes it on to every task"]
    if not passing and not plan.requeues:
        return [f"{command} || code=$?"]
    return [
        *(_LISTENING if plan.requeues else []),
        *passing,
        f"{command} &",
        "launch=$!",
        "passed=1",
        'while ((passed)); do passed=0 code=0; wait "$launch" || code=$?; done  # a signal ends a wait',
        *(["trap 'terminated=1' TERM"] if plan.requeues else []),
    ]


_LISTENING = [
    "trap on_term TERM",
    "if [[ -n $terminated ]]; then on_term; fi  # before the launch",
    "if [[ -n $requeued ]]; then exit 0; fi",
]


def _call(plan: Plan) -> list[Word]:
    """Return how a task's shell calls the function; with pyxis the variables are passed as words."""
    if not plan.uses_pyxis:
        return ["task"]
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    names += [name for name in open_names(plan.job) if name not in names]
    library = f' PYTHONPATH="{run_folder(plan)}/lib${{PYTHONPATH:+:$PYTHONPATH}}"'
    export = f'export "$@"{library if plan.uses_agent else ""}; task'
    return [export, "task", *(Raw(f'"{name}=${name}"') for name in names)]


def _refuse_cleaning(plan: Plan) -> None:
    if cleans(plan.job):
        raise JobError(
            f"{join(plan.job.container_args)} with --launcher {plan.launcher.name}: the variables by which the ranks "
            "find each other would not reach them.\nLeave it out, or use --launcher srun."
        )


def _srun(plan: Plan, step: Words) -> list[Word]:
    job, shape = plan.job, plan.shape
    words: list[Word] = ["srun", "--kill-on-bad-exit=1", "--export=ALL", *step]
    if shape.cpus_per_task:  # Slurm 22.05 to 23.02 does not inherit it
        words.append(f"--cpus-per-task={shape.cpus_per_task}")
    if shape.tasks_per_node > 1:
        words.append(f"--distribution={job.distribution or 'block'}")
    words += srun_binding(plan)
    words += plan.launcher.srun_options(job)
    if plan.uses_pyxis:
        own = run_folder(plan)
        folder = f",{own}:{own}" if plan.uses_agent else ""
        words += pyxis_options(job, Raw(f'"$PWD:$PWD{folder}"'))
    return words


def cpu_lists(plan: Plan) -> tuple[str, ...]:
    """Return one CPU list per local rank, from ``--bind`` or the site's node shape; else none."""
    bind = plan.job.bind or "auto"
    if bind not in ("auto", "none"):
        return tuple(bind.split(";"))
    if bind == "auto" and plan.site is not None:
        for partition in plan.site.partitions:
            if plan.job.partition in (None, partition.name):
                for shape in partition.shapes:
                    # The lists are for a whole node: on a part of one, Slurm chooses the CPUs.
                    if shape.cpu_lists and plan.shape.gpus_per_node.count == shape.gpus:
                        return tuple(shape.cpu_lists)
    return ()


def srun_binding(plan: Plan) -> list[Word]:
    """Return srun's own option, where one task is one rank."""
    lists = cpu_lists(plan)
    if plan.job.bind == "none":
        return ["--cpu-bind=none"]
    if lists and plan.shape.tasks_per_node == plan.shape.ranks_per_node > 1:
        return ["--cpu-bind=mask_cpu:" + ",".join(mask(item) for item in lists)]
    return []


def agent_binding(plan: Plan) -> str:
    """Return the binding for the agent, which binds the ranks that it starts."""
    lists = cpu_lists(plan)
    if plan.job.bind == "none" or (lists and srun_binding(plan)):
        return "none"
    return ";".join(lists) or "auto"


def mask(cpus: str) -> str:
    """Return ``49-55`` as the hexadecimal mask that srun reads."""
    bits = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            bits |= 1 << cpu
    return hex(bits)
