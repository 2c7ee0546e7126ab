"""The parts of a job script about attempts: the run folder, a folder for each attempt, the end."""

from __future__ import annotations

from allranks.errors import Interrupted
from allranks.job.plan import Plan
from allranks.script.places import batch_python, container_words, uses_agent
from allranks.shell import Word, join, quote

OWN_FOLDER = '"${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
"""The run folder of a script that was printed, not submitted: one for each submission."""

MAX_ATTEMPTS, MAX_FRUITLESS = 100, 3
GO_ON = Interrupted.GO_ON


def requeues(plan: Plan) -> bool:
    """Whether the script puts itself back into the queue."""
    return bool(plan.job.requeue) and uses_agent(plan)


def restarts(plan: Plan) -> bool:
    """Whether the script is a loop: crashed ranks are started again in place."""
    return bool(plan.job.restarts) and uses_agent(plan)


def follows_up(plan: Plan) -> bool:
    """Whether something may follow an attempt."""
    return requeues(plan) or restarts(plan)


def folder_lines(plan: Plan, run_dir: str | None) -> list[str]:
    """The run folder, and a run that has finished already."""
    lines = [f"cd {quote(plan.job.chdir)}"] if plan.job.chdir else []
    if not uses_agent(plan):
        return lines
    folder = quote(run_dir) if run_dir else OWN_FOLDER
    if requeues(plan) and not run_dir:
        folder = f"${{ALLRANKS_GO_ON_IN:-{folder}}}"
    lines += [f"run_folder={folder}", 'mkdir -p "$run_folder/attempts"']
    if requeues(plan) and not run_dir:
        lines.append('cp -n "$0" "$run_folder/job.sh"  # to submit it again')
    task = "-$SLURM_ARRAY_TASK_ID" if plan.job.array else ""
    return [
        *lines,
        f"finished=$run_folder/finished{task}",
        "if [[ -e $finished ]]; then",
        '  echo "This run has finished already; nothing is left to do." >&2',
        "  exit 0",
        "fi",
        *_own_folder(plan),
        *_deadline(plan),
    ]


def _own_folder(plan: Plan) -> list[str]:
    """Where the training writes; each task of an array has metrics and checkpoints of its own."""
    if not plan.job.array:
        return ["export ALLRANKS_RUN_DIR=$run_folder"]
    lines = ["export ALLRANKS_RUN_DIR=$run_folder/tasks/$SLURM_ARRAY_TASK_ID"]
    return [*lines, 'mkdir -p "$ALLRANKS_RUN_DIR"']


def job_id(plan: Plan) -> str:
    """The job as Slurm's commands name it: of an array, this task alone."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if plan.job.array else "$SLURM_JOB_ID"


def _deadline(plan: Plan) -> list[str]:
    """When the job ends, for ranks that save themselves before it; Slurm says N/A without a limit."""
    asked = f'SLURM_TIME_FORMAT=%s squeue -h -j "{job_id(plan)}" -o %e 2>/dev/null || true'
    return [
        f"end=${{SLURM_JOB_END_TIME:-$({asked})}}",
        "if [[ $end =~ ^[0-9]+$ ]]; then export ALLRANKS_DEADLINE=$end; fi  # the job's end, in seconds",
    ]


def attempt_lines(plan: Plan) -> list[str]:
    """A folder of its own for each life of the job."""
    if not uses_agent(plan):
        return []
    return [
        "attempt=1  # mkdir decides between array tasks that start at the same time",
        'until mkdir "$run_folder/attempts/$attempt" 2>/dev/null; do',
        "  if [[ ! -e $run_folder/attempts/$attempt ]]; then break; fi  # it says why below",
        "  attempt=$((attempt + 1))",
        "done",
        "export ALLRANKS_ATTEMPT_DIR=$run_folder/attempts/$attempt",
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
END = 'TZ=UTC printf \'{"exit_code": %d, "end": "%(%FT%TZ)T"}\\n\' "$code" -1 >"$ALLRANKS_ATTEMPT_DIR/end.json"'


def agent_words(plan: Plan, verb: str) -> str:
    """The agent's command in the batch script."""
    inside: list[Word] = ["inside"] if container_words(plan) else []
    return join([*inside, batch_python(plan), "-m", "allranks.agent", verb])


def end_lines(plan: Plan, agent_is_on: str) -> list[str]:
    """What the script does when its ranks have ended."""
    if not uses_agent(plan):
        return _plain_end(plan)
    if follows_up(plan):
        return _decided_end(plan)
    return [
        f"if ((code == 0)) && [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code={GO_ON}; fi  # saved, not finished",
        'if ((code == 0)); then touch "$finished"; fi',
        f"if ((code != 0)){agent_is_on}; then  # show the first error, leave with its code",
        f'  first=$({agent_words(plan, "summary")} "$ALLRANKS_ATTEMPT_DIR" "$code" | tail -n 1) || true',
        "  if [[ $first =~ ^[1-9][0-9]*$ ]]; then code=$first; fi",
        "fi",
        END,
        'exit "$code"',
    ]


def _plain_end(plan: Plan) -> list[str]:
    """Without allranks on the nodes a script asks by its exit code to go on."""
    if not plan.job.requeue:
        return ['exit "$code"']
    most = plan.job.max_attempts or MAX_ATTEMPTS
    return [
        f"# Exit code {GO_ON}: the training has saved itself and wants to go on.",
        f"if ((code == {GO_ON} && ${{SLURM_RESTART_COUNT:-0}} < {most - 1})); then",
        f'  scontrol requeue "{job_id(plan)}"',
        "fi",
        'exit "$code"',
    ]


def _decided_end(plan: Plan) -> list[str]:
    settled = requeues(plan)
    lines = ["if ((settled)); then exit 0; fi"] if settled else []
    lines += [
        "decide ${told:+--told}" if settled else "decide",
        'if [[ $next == "done" ]]; then touch "$finished"; fi',
    ]
    if restarts(plan):
        lines += [
            "if [[ $next == restart ]]; then",
            "  restarted=$((restarted + 1))",
            "  continue",
            "fi",
        ]
    if settled:
        lines += [
            "if [[ $next == requeue || $next == resubmit ]]; then",
            "  trap '' TERM  # Slurm sends it when it takes the job back",
            f"  if go_on; then code=0; else code={GO_ON}; fi",
            "fi",
        ]
    return [*lines, 'exit "$code"']
