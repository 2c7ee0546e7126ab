"""The parts of a job script about attempts: the run folder, a folder per attempt, and its end."""

from __future__ import annotations

from allranks.core.shell import Word, join, quote
from allranks.errors import Interrupted
from allranks.job.environments import batch_python, container_words
from allranks.job.plan import Plan

OWN_FOLDER = '"${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
"""The run folder of a script that was printed by ``allranks script``: one per submission."""

SAVED = Interrupted.EXIT_CODE


def follows_up(plan: Plan) -> bool:
    """Whether another attempt may follow."""
    return plan.requeues or plan.restarts_ranks


def asks_agent(plan: Plan) -> bool:
    """Whether the script checks if allranks is installed, and runs without it if not."""
    launcher = plan.launcher
    return launcher.wraps_ranks and launcher.uses_srun and not plan.only_tasks_have_environment


def folder_lines(plan: Plan, run_dir: str | None) -> list[str]:
    """Return the lines about the run folder, and about a run that has finished already."""
    lines = [f"cd {quote(plan.job.chdir)}"] if plan.job.chdir else []
    if not plan.uses_agent:
        return lines
    folder = quote(run_dir) if run_dir else OWN_FOLDER
    if plan.requeues and not run_dir:
        folder = f"${{ALLRANKS_RESUME_DIR:-{folder}}}"
    lines += [f"run_folder={folder}", 'mkdir -p "$run_folder/attempts"']
    if plan.requeues and not run_dir:
        lines.append(
            '[[ -e $run_folder/job.sh ]] || cp "$0" "$run_folder/job.sh"  # to submit it again'
        )
    task = "-$SLURM_ARRAY_TASK_ID" if plan.job.array else ""
    return [
        *lines,
        f"finished=$run_folder/finished{task}",
        "if [[ -e $finished ]]; then",
        '  echo "This run has finished already." >&2',
        "  exit 0",
        "fi",
        *(_CANCELLED if plan.requeues else []),
        *_own_folder(plan),
        *_deadline(plan),
    ]


_CANCELLED = [
    "if [[ -e $run_folder/cancelled ]]; then",
    '  echo "This run was cancelled. Resume it with: allranks resume ${run_folder##*/}" >&2',
    "  exit 143",
    "fi",
]


def _own_folder(plan: Plan) -> list[str]:
    """Return where the training writes; each task of an array has its own metrics and checkpoints."""
    if not plan.job.array:
        return ["export ALLRANKS_RUN_DIR=$run_folder"]
    lines = ["export ALLRANKS_RUN_DIR=$run_folder/tasks/$SLURM_ARRAY_TASK_ID"]
    return [*lines, 'mkdir -p "$ALLRANKS_RUN_DIR"']


def job_id(plan: Plan) -> str:
    """Return the job id for Slurm's commands; for an array, that of this task."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if plan.job.array else "$SLURM_JOB_ID"


def _deadline(plan: Plan) -> list[str]:
    """Return the lines that find the end of the job; squeue prints N/A without a time limit."""
    asked = f'SLURM_TIME_FORMAT=%s squeue -h -j "{job_id(plan)}" -o %e 2>/dev/null || true'
    return [
        f"end=${{SLURM_JOB_END_TIME:-$({asked})}}",
        "if [[ $end =~ ^[0-9]+$ ]]; then export ALLRANKS_DEADLINE=$end; fi  # the job's end, in seconds",
    ]


def attempt_lines(plan: Plan) -> list[str]:
    """Return the lines that create the attempt's folder; from then on its end is always recorded."""
    if not plan.uses_agent:
        return []
    lines = _new_attempt(plan)
    if plan.restarts_ranks:
        lines = ["begin() {", *(f"  {line}" for line in lines), "}", "begin"]
    if not follows_up(plan):
        return lines
    return [
        *lines,
        *(["ALLRANKS_AGENT=off  # until it is found below"] if asks_agent(plan) else []),
        *(["trap 'terminated=1' TERM"] if plan.requeues else []),
        "trap 'on_exit $?' EXIT",
    ]


def _new_attempt(plan: Plan) -> list[str]:
    return [
        "attempt=1  # mkdir decides between array tasks that start at the same time",
        'until mkdir "$run_folder/attempts/$attempt" 2>/dev/null; do',
        "  if [[ ! -e $run_folder/attempts/$attempt ]]; then break; fi  # mkdir prints why below",
        "  attempt=$((attempt + 1))",
        "done",
        "export ALLRANKS_ATTEMPT_DIR=$run_folder/attempts/$attempt",
        'mkdir "$ALLRANKS_ATTEMPT_DIR/ranks" "$ALLRANKS_ATTEMPT_DIR/failures"',
        f"printf '{_ATTEMPT}\\n' \\",
        f'  "$attempt" "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" {plan.launcher.name} "$SLURM_JOB_NODELIST" \\',
        f'  "${{SLURM_ARRAY_TASK_ID:-}}" "{_NOW}" \\',
        '  >"$ALLRANKS_ATTEMPT_DIR/attempt.json"',
    ]


_ATTEMPT = (
    '{"attempt": %d, "scheduler": "slurm", "job_id": "%s", "restart": %d, '
    '"launcher": "%s", "hosts": ["%s"], "array_task": "%s", "start": "%s"}'
)
_NOW = "$(date -u +%FT%T.%6NZ)"
"""To the microsecond, as the agent stamps its ranks: a run may be over within a second."""
END = f'printf \'{{"exit_code": %d, "end": "%s"}}\\n\' "$code" "{_NOW}" >"$ALLRANKS_ATTEMPT_DIR/end.json"'


def agent_words(plan: Plan, verb: str) -> str:
    """Return a command of the agent in the batch script."""
    inside: list[Word] = ["inside"] if container_words(plan) else []
    return join([*inside, batch_python(plan), "-m", "allranks.runtime.agent", verb])


def end_lines(plan: Plan, agent_is_on: str) -> list[str]:
    """Return what the script does when its ranks have ended."""
    if not plan.uses_agent:
        return _plain_end(plan)
    if follows_up(plan):
        return _decided_end(plan)
    return [
        f"if ((code == 0)) && [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code={SAVED}; fi  # saved, not finished",
        'if ((code == 0)); then touch "$finished"; fi',
        f"if ((code != 0)){agent_is_on}; then  # show the first error, leave with its code",
        f'  first=$({agent_words(plan, "summary")} "$ALLRANKS_ATTEMPT_DIR" "$code" | tail -n 1) || true',
        "  if [[ $first =~ ^[1-9][0-9]*$ ]]; then code=$first; fi",
        "fi",
        END,
        'exit "$code"',
    ]


def _plain_end(plan: Plan) -> list[str]:
    """With --no-agent the exit code of the training asks for a requeue."""
    if not plan.job.requeue:
        return ['exit "$code"']
    most = plan.requeue_policy.max_attempts
    return [
        f"# Exit code {SAVED}: the training has saved and asks for a requeue, which a cancelled job does not get.",
        f"if ((code == {SAVED} && ${{SLURM_RESTART_COUNT:-0}} < {most - 1})) &&",
        f'  [[ $(timeout 30 scontrol show job -o "{job_id(plan)}") == *JobState=RUNNING* ]]; then',
        f'  timeout 30 scontrol requeue "{job_id(plan)}"',
        "fi",
        'exit "$code"',
    ]


def _decided_end(plan: Plan) -> list[str]:
    lines = ["if [[ -n $requeued ]]; then exit 0; fi"] if plan.requeues else []
    lines += ["follow_up", 'if [[ $next == "done" ]]; then touch "$finished"; fi']
    if plan.restarts_ranks:
        lines += [
            "if [[ $next == restart ]]; then",
            "  restarted=$((restarted + 1))",
            "  begin",
            "  continue",
            "fi",
        ]
    return [*lines, 'exit "$result"']
