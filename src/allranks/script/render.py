"""Plan → job script. A pure function: the same plan gives the same text.

The script is plain bash in named parts, for a reader who has never seen allranks. What needs allranks
on the nodes stands in a part of its own and steps aside where allranks is not installed.
"""

from __future__ import annotations

from allranks._version import __version__
from allranks.environment import (
    apptainer_words,
    carry_lines,
    cleans,
    inner_words,
    open_names,
    pyxis_options,
    setup_lines,
    variable_lines,
)
from allranks.errors import JobError
from allranks.job.plan import Plan
from allranks.launchers import LAUNCHERS, SLURM
from allranks.launchers.horovod import table_lines
from allranks.script.binding import agent_binding, srun_binding
from allranks.script.directives import directive_lines
from allranks.script.rendezvous import (
    INTERFACE,
    PORT_OF_JOB,
    PORT_OF_RUN,
    rendezvous_lines,
    task_lines,
)
from allranks.shell import Raw, Word, Words, fold, join, quote

OWN_FOLDER = '"${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
"""The run folder of a script that was printed, not submitted: one for each submission."""

SHELLCHECK = [
    "# Files of the environment are on the cluster; functions run in tasks; quoted words are data.",
    "# shellcheck disable=SC1090,SC1091,SC2016,SC2317",
]


def render(plan: Plan, *, made_by: str = "", run_dir: str | None = None) -> str:
    """The whole job script."""
    output = f"{run_dir.replace('%', '%%')}/slurm-%j.out" if run_dir else "%x-%j.out"
    head = ["#!/bin/bash", *_header(made_by), "", *directive_lines(plan, output), ""]
    return "\n".join([*head, *SHELLCHECK, "set -eo pipefail", *body_lines(plan, run_dir)]) + "\n"


def body_lines(plan: Plan, run_dir: str | None, step: Words = ()) -> list[str]:
    """The script without directives; ``step`` are further words for srun."""
    parts = {
        "Folder": _folder(plan, run_dir),
        "Environment": _environment(plan),
        "Rendezvous": rendezvous_lines(plan, PORT_OF_RUN if step else PORT_OF_JOB),
        "allranks on the nodes": _agent(plan),
        "What every task runs": _task(plan),
        "Launch": _launch(plan, step),
        "End": _end(plan),
    }
    lines: list[str] = []
    for title, part in parts.items():
        if part:
            lines += ["", f"# --- {title} ".ljust(79, "-"), *part]
    return lines


def _header(made_by: str) -> list[str]:
    lines = [f"# Made by allranks {__version__}" + (" from:" if made_by else ".")]
    lines += [f"#   {line}" for line in made_by.splitlines()]
    return [*lines, "# Plain bash: read it, change it, submit it with sbatch."]


def _uses_agent(plan: Plan) -> bool:
    return plan.agent and plan.launcher != "python"


def _folder(plan: Plan, run_dir: str | None) -> list[str]:
    lines = [f"cd {quote(plan.job.chdir)}"] if plan.job.chdir else []
    if not _uses_agent(plan):
        return lines
    return [
        *lines,
        f"export ALLRANKS_RUN_DIR={quote(run_dir) if run_dir else OWN_FOLDER}",
        'mkdir -p "$ALLRANKS_RUN_DIR/attempts"',
        "attempt=1  # mkdir decides between array tasks that start at the same time",
        'until mkdir "$ALLRANKS_RUN_DIR/attempts/$attempt" 2>/dev/null; do',
        "  if [[ ! -e $ALLRANKS_RUN_DIR/attempts/$attempt ]]; then break; fi  # it says why below",
        "  attempt=$((attempt + 1))",
        "done",
        "export ALLRANKS_ATTEMPT_DIR=$ALLRANKS_RUN_DIR/attempts/$attempt",
        'mkdir "$ALLRANKS_ATTEMPT_DIR/ranks" "$ALLRANKS_ATTEMPT_DIR/failures"',
        f"TZ=UTC printf '{_ATTEMPT}\\n' \\",
        f'  "$attempt" "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" {plan.launcher} "$SLURM_JOB_NODELIST" \\',
        '  "${SLURM_ARRAY_TASK_ID:-}" -1 \\',
        '  >"$ALLRANKS_ATTEMPT_DIR/attempt.json"',
    ]


_ATTEMPT = (
    '{"attempt": %d, "scheduler": "slurm", "job_id": "%s", "restart": %d, '
    '"launcher": "%s", "hosts": ["%s"], "array_task": "%s", "start": "%(%FT%TZ)T"}'
)


def _environment(plan: Plan) -> list[str]:
    job = plan.job
    lines = setup_lines(job) if not _set_up_in_task(plan) else []
    lines += variable_lines(job)
    if plan.accelerate_needs_cpu:
        lines.append("export ACCELERATE_USE_CPU=true  # else each rank would train alone")
    if "OMP_NUM_THREADS" not in job.env:
        lines.append(f"export OMP_NUM_THREADS={_threads(plan)}")
    if words := _container(plan):
        carry = ["  carry"] if cleans(job) else []
        lines += carry_lines(job) if carry else []
        lines += ["inside() {  # run a command in the container", *carry, f'  {join(words)} "$@"']
        lines += ["}", "export -f inside"]
    return lines


def _set_up_in_task(plan: Plan) -> bool:
    return plan.job.setup_on == "node" and LAUNCHERS[plan.launcher].through_srun


def _pyxis(plan: Plan) -> bool:
    return bool(plan.job.container) and plan.job.container_runtime == "pyxis"


def _tasks_differ(plan: Plan) -> bool:
    """Whether only a task, not the batch script, has the environment of the ranks."""
    return _set_up_in_task(plan) or _pyxis(plan)


def _threads(plan: Plan) -> str:
    if plan.shape.cpus_per_rank:
        return str(plan.shape.cpus_per_rank)
    if plan.shape.tasks_per_node == plan.shape.ranks_per_node:
        return "${SLURM_CPUS_PER_TASK:-1}"
    return f"$(((${{SLURM_CPUS_PER_TASK:-1}} + {plan.shape.ranks_per_node - 1}) / {plan.shape.ranks_per_node}))"


def _agent(plan: Plan) -> list[str]:
    if not _uses_agent(plan):
        return []
    present = join([*_inside(plan), plan.python, "-c", "import allranks.agent"])
    lines = [
        "# A log per rank, the first error last, CPUs near the GPUs.",
        f"export ALLRANKS_LAUNCHER={plan.launcher} ALLRANKS_BIND={quote(agent_binding(plan))}"
        + (
            f" ALLRANKS_FRAMEWORK={plan.framework}" if plan.framework not in (None, "torch") else ""
        ),
        'export PYTHONPATH="$ALLRANKS_RUN_DIR/lib${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    if not LAUNCHERS[plan.launcher].wraps_ranks:
        return lines
    options = LAUNCHERS[plan.launcher].agent_options(plan)
    if not LAUNCHERS[plan.launcher].through_srun:
        lines.append(
            f"rank=({join([plan.python, '-m', 'allranks.agent', 'rank', *options, '--'])})"
        )
        bare = join(LAUNCHERS[plan.launcher].bare())
        return [*lines, f"if ! {present} 2>/dev/null; then rank=({bare}); fi"]
    if _tasks_differ(plan):
        return lines
    return [
        *lines,
        "export ALLRANKS_AGENT=on",
        f"if ! {present} 2>/dev/null; then",
        '  echo "allranks is not installed in this environment: the job runs without it." >&2',
        "  ALLRANKS_AGENT=off",
        "fi",
    ]


def _container(plan: Plan) -> list[Word]:
    """The words that put a command into the container; none without one, or with pyxis (srun's)."""
    job = plan.job
    if not job.container or _pyxis(plan):
        return []
    gpus = plan.shape.gpus_per_node.count > 0
    return apptainer_words(job, plan.gpu_vendor, gpus, _own_binds(plan))


def _inside(plan: Plan) -> list[Word]:
    return ["inside"] if _container(plan) else []


def _own_binds(plan: Plan) -> list[Word]:
    return [Raw('"$ALLRANKS_RUN_DIR"')] if _uses_agent(plan) else []


def _task(plan: Plan) -> list[str]:
    launcher = LAUNCHERS[plan.launcher]
    if not launcher.through_srun:
        return []
    wrapped = inner_words(plan.job) if _pyxis(plan) else _container(plan)
    lines = [*task_lines(plan), *launcher.task_lines(plan)]
    if not launcher.survives_signals:
        lines.append("trap '' USR1 USR2  # meant for the ranks; the launcher would die of them")
    if _set_up_in_task(plan):
        lines = ["set -eo pipefail", *setup_lines(plan.job), *lines]
    if cleans(plan.job):
        lines.append("carry")
    if plan.agent and launcher.wraps_ranks:
        agent = join(
            [plan.python, "-m", "allranks.agent", "rank", *launcher.agent_options(plan), "--"]
        )
        present = "[[ $ALLRANKS_AGENT == on ]]"
        if _tasks_differ(plan):
            present = join([*wrapped, plan.python, "-c", "import allranks.agent"]) + " 2>/dev/null"
        lines += ["local rank=()", f"if {present}; then rank=({agent}); fi"]
    words = launcher.words(plan, SLURM)
    # exec: a shell that stays would die of a signal that the rank has handled well.
    command = fold([["exec", *wrapped, *words[0]], *words[1:]], indent="    ")
    return ["task() {", *(f"  {line}" for line in lines), f"  {command}", "}", "export -f task"]


def _launch(plan: Plan, step: Words) -> list[str]:
    launcher = LAUNCHERS[plan.launcher]
    if launcher.through_srun:
        command = join([*_srun(plan, step), "bash", "-c", *_call(plan)])
    else:
        _refuse_cleaning(plan)
        start, *rest = launcher.words(plan, SLURM)
        command = fold([start, *rest[:-1], [*_container(plan), *rest[-1]]])
    network = [] if launcher.through_srun or plan.shape.nodes == 1 else INTERFACE
    lines = [*network, *table_lines(plan), *launcher.script_lines(plan), "code=0"]
    if _pyxis(plan):
        lines.append("# The image's own variables win over ours, so these are said again inside.")
    options, _, signal = (plan.job.signal or "").rpartition(":")
    if "B" not in options:
        return [*lines, f"{command} || code=$?"]
    name = signal.partition("@")[0].removeprefix("SIG")
    return [
        *lines,
        f"{command} &",
        "launch=$!",
        f"trap 'passed=1; kill -{name} \"$launch\"' {name}  # srun passes it on to every task",
        "passed=1",
        'while ((passed)); do passed=0 code=0; wait "$launch" || code=$?; done  # a signal ends a wait',
    ]


def _call(plan: Plan) -> list[Word]:
    """How a task's shell calls the function; pyxis lets the image's variables win, so ours come as words."""
    if not _pyxis(plan):
        return ["task"]
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    names += ["PYTHONPATH"] if _uses_agent(plan) else []
    names += [name for name in open_names(plan.job) if name not in names]
    return ['export "$@"; task', "task", *(Raw(f'"{name}=${name}"') for name in names)]


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
    if _pyxis(plan):
        folder = ",$ALLRANKS_RUN_DIR:$ALLRANKS_RUN_DIR" if _uses_agent(plan) else ""
        words += pyxis_options(job, Raw(f'"$PWD:$PWD{folder}"'))
    return words


def _end(plan: Plan) -> list[str]:
    if not _uses_agent(plan):
        return ['exit "$code"']
    summary = join([*_inside(plan), plan.python, "-m", "allranks.agent", "summary"])
    agent_is_on = " && [[ $ALLRANKS_AGENT == on ]]" if _may_be_off(plan) else ""
    return [
        f"if ((code != 0)){agent_is_on}; then  # show the first error, leave with its code",
        f'  first=$({summary} "$ALLRANKS_ATTEMPT_DIR" "$code" | tail -n 1) || true',
        "  if [[ $first =~ ^[1-9][0-9]*$ ]]; then code=$first; fi",
        "fi",
        'TZ=UTC printf \'{"exit_code": %d, "end": "%(%FT%TZ)T"}\\n\' "$code" -1 >"$ALLRANKS_ATTEMPT_DIR/end.json"',
        'exit "$code"',
    ]


def _may_be_off(plan: Plan) -> bool:
    """Whether the script asks if allranks is installed, and runs without it where it is not."""
    launcher = LAUNCHERS[plan.launcher]
    return launcher.wraps_ranks and launcher.through_srun and not _tasks_differ(plan)
