"""Plan → job script. A pure function: the same plan gives the same text.

The script is plain bash in named parts, for a reader who has never seen allranks. What needs allranks
on the nodes stands in a part of its own and steps aside where allranks is not installed.
"""

from __future__ import annotations

from allranks._version import __version__
from allranks.environment import (
    carry_lines,
    cleans,
    inner_words,
    setup_lines,
    variable_lines,
)
from allranks.job.plan import Plan
from allranks.launchers import LAUNCHERS, SLURM
from allranks.script.binding import agent_binding
from allranks.script.directives import directive_lines
from allranks.script.launch import launch_lines
from allranks.script.places import (
    batch_python,
    container_words,
    is_pyxis,
    set_up_in_task,
    tasks_differ,
    uses_agent,
)
from allranks.script.rendezvous import (
    PORT_OF_JOB,
    PORT_OF_RUN,
    rendezvous_lines,
    task_lines,
)
from allranks.shell import Word, Words, fold, join, quote

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
        "Launch": launch_lines(plan, step),
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


def _folder(plan: Plan, run_dir: str | None) -> list[str]:
    lines = [f"cd {quote(plan.job.chdir)}"] if plan.job.chdir else []
    if not uses_agent(plan):
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
    lines = setup_lines(job) if not set_up_in_task(plan) else []
    lines += variable_lines(job)
    if plan.accelerate_needs_cpu:
        lines.append("export ACCELERATE_USE_CPU=true  # else each rank would train alone")
    if "OMP_NUM_THREADS" not in job.env:
        lines.append(f"export OMP_NUM_THREADS={_threads(plan)}")
    if words := container_words(plan):
        carry = ["  carry"] if cleans(job) else []
        lines += carry_lines(job) if carry else []
        lines += ["inside() {  # run a command in the container", *carry, f'  {join(words)} "$@"']
        lines += ["}", "export -f inside"]
    return lines


def _threads(plan: Plan) -> str:
    if plan.shape.cpus_per_rank:
        return str(plan.shape.cpus_per_rank)
    if plan.shape.tasks_per_node == plan.shape.ranks_per_node:
        return "${SLURM_CPUS_PER_TASK:-1}"
    return f"$(((${{SLURM_CPUS_PER_TASK:-1}} + {plan.shape.ranks_per_node - 1}) / {plan.shape.ranks_per_node}))"


def _agent(plan: Plan) -> list[str]:
    if not uses_agent(plan):
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
    if tasks_differ(plan):
        return lines
    return [
        *lines,
        "export ALLRANKS_AGENT=on",
        f"if ! {present} 2>/dev/null; then",
        '  echo "allranks is not installed in this environment: the job runs without it." >&2',
        "  ALLRANKS_AGENT=off",
        "fi",
    ]


def _inside(plan: Plan) -> list[Word]:
    return ["inside"] if container_words(plan) else []


def _task(plan: Plan) -> list[str]:
    launcher = LAUNCHERS[plan.launcher]
    if not launcher.through_srun:
        return []
    wrapped = inner_words(plan.job) if is_pyxis(plan) else container_words(plan)
    lines = [*task_lines(plan), *launcher.task_lines(plan)]
    if not launcher.survives_signals:
        lines.append("trap '' USR1 USR2  # meant for the ranks; the launcher would die of them")
    if set_up_in_task(plan):
        lines = ["set -eo pipefail", *setup_lines(plan.job), *lines]
    if cleans(plan.job):
        lines.append("carry")
    if plan.agent and launcher.wraps_ranks:
        agent = join(
            [plan.python, "-m", "allranks.agent", "rank", *launcher.agent_options(plan), "--"]
        )
        present = "[[ $ALLRANKS_AGENT == on ]]"
        if tasks_differ(plan):
            present = join([*wrapped, plan.python, "-c", "import allranks.agent"]) + " 2>/dev/null"
        lines += ["local rank=()", f"if {present}; then rank=({agent}); fi"]
    words = launcher.words(plan, SLURM)
    # exec: a shell that stays would die of a signal that the rank has handled well.
    command = fold([["exec", *wrapped, *words[0]], *words[1:]], indent="    ")
    return ["task() {", *(f"  {line}" for line in lines), f"  {command}", "}", "export -f task"]


def _end(plan: Plan) -> list[str]:
    if not uses_agent(plan):
        return ['exit "$code"']
    summary = join([*_inside(plan), batch_python(plan), "-m", "allranks.agent", "summary"])
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
    return launcher.wraps_ranks and launcher.through_srun and not tasks_differ(plan)
