"""Plan → job script, a pure function: the same plan gives the same text.

The script is plain bash in titled parts, for a reader who has never seen allranks. The part that needs
allranks on the nodes is skipped where allranks is not installed.
"""

from __future__ import annotations

from allranks._version import __version__
from allranks.core.shell import Word, Words, fold, join, quote
from allranks.job.environments import (
    carry_lines,
    cleans,
    container_words,
    inner_words,
    setup_lines,
    variable_lines,
)
from allranks.job.plan import Plan
from allranks.job.sbatch.launch_lines import agent_binding, launch_lines
from allranks.job.sbatch.rendezvous_lines import (
    PORT_OF_JOB,
    PORT_OF_RUN,
    next_port,
    rendezvous_lines,
    task_lines,
)
from allranks.job.sbatch.requeue_lines import earlier_attempt_lines, requeue_lines
from allranks.job.sbatch.run_folder_lines import (
    asks_agent,
    attempt_lines,
    end_lines,
    folder_lines,
    follows_up,
)
from allranks.job.sbatch.sbatch_directives import directive_lines

SHELLCHECK = [
    "# Files of the environment are on the cluster; functions run in tasks; quoted words are data.",
    "# shellcheck disable=SC1090,SC1091,SC2016,SC2317",
]


def render(plan: Plan, *, made_by: str = "", run_dir: str | None = None) -> str:
    """Return the whole job script."""
    output = f"{run_dir.replace('%', '%%')}/slurm-%j.out" if run_dir else "%x-%j.out"
    head = ["#!/bin/bash", *_header(made_by), "", *directive_lines(plan, output), ""]
    return "\n".join([*head, *SHELLCHECK, "set -eo pipefail", *body_lines(plan, run_dir)]) + "\n"


def body_lines(plan: Plan, run_dir: str | None, step: Words = ()) -> list[str]:
    """Return the script without directives; ``step`` are further options of srun."""
    first_port = PORT_OF_RUN if step else PORT_OF_JOB
    if not follows_up(plan):
        return _titled(
            {
                "Folder": [*folder_lines(plan, run_dir), *attempt_lines(plan)],
                "Environment": _environment(plan),
                "Rendezvous": rendezvous_lines(plan, first_port),
                "allranks on the nodes": _agent(plan),
                "What every task runs": _task(plan),
                "Launch": launch_lines(plan, step),
                "End": end_lines(plan, _agent_is_on(plan)),
            }
        )
    first_port = next_port(first_port) if plan.restarts_ranks else first_port
    turn = _titled(
        {
            "Earlier attempts": earlier_attempt_lines(plan),
            "Rendezvous": rendezvous_lines(plan, first_port),
            "Launch": launch_lines(plan, step),
            "End": end_lines(plan, _agent_is_on(plan)),
        }
    )
    return [
        *_titled(
            {
                "Folder": folder_lines(plan, run_dir),
                "After an attempt": requeue_lines(plan, run_dir is None),
                "Attempt": attempt_lines(plan),
                "Environment": _environment(plan),
                "allranks on the nodes": _agent(plan),
                "What every task runs": _task(plan),
            }
        ),
        *(_looped(turn) if plan.restarts_ranks else turn),
    ]


def _looped(turn: list[str]) -> list[str]:
    return [
        "",
        "restarted=0",
        "while :; do  # one attempt per iteration; failed ranks are restarted in the next",
        *(f"  {line}" if line else "" for line in turn[1:]),
        "done",
    ]


def _titled(parts: dict[str, list[str]]) -> list[str]:
    lines: list[str] = []
    for title, part in parts.items():
        if part:
            lines += ["", f"# --- {title} ".ljust(79, "-"), *part]
    return lines


def _header(made_by: str) -> list[str]:
    lines = [f"# Made by allranks {__version__}" + (" from:" if made_by else ".")]
    lines += [f"#   {line}" for line in made_by.splitlines()]
    return [*lines, "# Plain bash: read it, change it, submit it with sbatch."]


def _environment(plan: Plan) -> list[str]:
    job = plan.job
    lines = setup_lines(job) if not plan.setup_in_task else []
    lines += variable_lines(job)
    if plan.accelerate_needs_cpu:
        lines.append("export ACCELERATE_USE_CPU=true  # else every rank would train separately")
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
    if not plan.uses_agent:
        return []
    present = join([*_inside(plan), plan.python, "-c", "import allranks.runtime.agent"])
    lines = [
        "# A log per rank, the first error last, CPUs near the GPUs.",
        f"export ALLRANKS_LAUNCHER={plan.launcher.name} ALLRANKS_BIND={quote(agent_binding(plan))}"
        + (
            f" ALLRANKS_FRAMEWORK={plan.framework}" if plan.framework not in (None, "torch") else ""
        ),
        'export PYTHONPATH="$run_folder/lib${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    if not plan.launcher.wraps_ranks:
        return lines
    options = plan.launcher.agent_options(plan)
    if not plan.launcher.uses_srun:
        lines.append(f"rank=({join(plan.agent_words('rank', *options, '--'))})")
        bare = join(plan.launcher.without_agent())
        return [*lines, f"if ! {present} 2>/dev/null; then rank=({bare}); fi"]
    if plan.only_tasks_have_environment:
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
    launcher = plan.launcher
    if not launcher.uses_srun:
        return []
    wrapped = inner_words(plan.job) if plan.uses_pyxis else container_words(plan)
    lines = [*task_lines(plan), *launcher.task_lines(plan)]
    if not launcher.survives_signals:
        lines.append("trap '' USR1 USR2  # for the ranks; the launcher would die of them")
    if plan.setup_in_task:
        lines = ["set -eo pipefail", *setup_lines(plan.job), *lines]
    if cleans(plan.job):
        lines.append("carry")
    if plan.agent and launcher.wraps_ranks:
        agent = join(plan.agent_words("rank", *launcher.agent_options(plan), "--"))
        present = "[[ $ALLRANKS_AGENT == on ]]"
        if plan.only_tasks_have_environment:
            present = (
                join([*wrapped, plan.python, "-c", "import allranks.runtime.agent"])
                + " 2>/dev/null"
            )
        lines += ["local rank=()", f"if {present}; then rank=({agent}); fi"]
    words = launcher.task_words(plan)
    # exec: a remaining shell would die of a signal that the rank handles.
    command = fold([["exec", *wrapped, *words[0]], *words[1:]], indent="    ")
    return ["task() {", *(f"  {line}" for line in lines), f"  {command}", "}", "export -f task"]


def _agent_is_on(plan: Plan) -> str:
    return " && [[ $ALLRANKS_AGENT == on ]]" if asks_agent(plan) else ""
