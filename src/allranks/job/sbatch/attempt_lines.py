"""The parts of a job script about attempts: the run folder, a folder for each attempt, the end."""

from __future__ import annotations

from allranks.core.shell import Word, join, quote
from allranks.errors import Interrupted
from allranks.job.launchers import LAUNCHERS
from allranks.job.plan import Plan
from allranks.job.sbatch.execution_places import (
    batch_python,
    container_words,
    tasks_differ,
    uses_agent,
)
from allranks.runtime.agent.requeue_policy import RequeuePolicy

OWN_FOLDER = '"${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"'
"""The run folder of a script that was printed, not submitted: one for each submission."""

SAVED = Interrupted.EXIT_CODE


def requeues(plan: Plan) -> bool:
    """Whether the script puts itself back into the queue."""
    return bool(plan.job.requeue) and uses_agent(plan)


def restarts(plan: Plan) -> bool:
    """Whether the script is a loop: crashed ranks are started again in place."""
    return bool(plan.job.restarts) and uses_agent(plan)


def follows_up(plan: Plan) -> bool:
    """Whether something may follow an attempt."""
    return requeues(plan) or restarts(plan)


def requeue_policy(plan: Plan) -> RequeuePolicy:
    """Return the limits within which the script follows an attempt by another."""
    usual, job = RequeuePolicy(), plan.job
    return RequeuePolicy(
        requeues(plan),
        job.max_attempts or usual.max_attempts,
        job.max_no_progress or usual.max_no_progress,
        job.restarts or usual.restarts,
    )


def asks_agent(plan: Plan) -> bool:
    """Whether the script asks if allranks is installed, and runs without it where it is not."""
    launcher = LAUNCHERS[plan.launcher]
    return launcher.wraps_ranks and launcher.through_srun and not tasks_differ(plan)


def folder_lines(plan: Plan, run_dir: str | None) -> list[str]:
    """The run folder, and a run that has finished already."""
    lines = [f"cd {quote(plan.job.chdir)}"] if plan.job.chdir else []
    if not uses_agent(plan):
        return lines
    folder = quote(run_dir) if run_dir else OWN_FOLDER
    if requeues(plan) and not run_dir:
        folder = f"${{ALLRANKS_RESUME_DIR:-{folder}}}"
    lines += [f"run_folder={folder}", 'mkdir -p "$run_folder/attempts"']
    if requeues(plan) and not run_dir:
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
        *(_CANCELLED if requeues(plan) else []),
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
    """A folder of its own for each life of the job; from then on its end is never left untold."""
    if not uses_agent(plan):
        return []
    lines = _new_attempt(plan)
    if restarts(plan):
        lines = ["begin() {", *(f"  {line}" for line in lines), "}", "begin"]
    if not follows_up(plan):
        return lines
    return [
        *lines,
        *(["ALLRANKS_AGENT=off  # until it is found below"] if asks_agent(plan) else []),
        *(["trap 'terminated=1' TERM"] if requeues(plan) else []),
        "trap on_exit EXIT",
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
        f'  "$attempt" "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" {plan.launcher} "$SLURM_JOB_NODELIST" \\',
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
    """The agent's command in the batch script."""
    inside: list[Word] = ["inside"] if container_words(plan) else []
    return join([*inside, batch_python(plan), "-m", "allranks.runtime.agent", verb])


def end_lines(plan: Plan, agent_is_on: str) -> list[str]:
    """What the script does when its ranks have ended."""
    if not uses_agent(plan):
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
    """Without allranks on the nodes a script asks by its exit code to go on."""
    if not plan.job.requeue:
        return ['exit "$code"']
    most = requeue_policy(plan).max_attempts
    return [
        f"# Exit code {SAVED}: the training has saved and asks for a requeue, which a cancelled job does not get.",
        f"if ((code == {SAVED} && ${{SLURM_RESTART_COUNT:-0}} < {most - 1})) &&",
        f'  [[ $(timeout 30 scontrol show job -o "{job_id(plan)}") == *JobState=RUNNING* ]]; then',
        f'  timeout 30 scontrol requeue "{job_id(plan)}"',
        "fi",
        'exit "$code"',
    ]


def _decided_end(plan: Plan) -> list[str]:
    lines = ["if [[ -n $requeued ]]; then exit 0; fi"] if requeues(plan) else []
    lines += ["follow_up", 'if [[ $next == "done" ]]; then touch "$finished"; fi']
    if restarts(plan):
        lines += [
            "if [[ $next == restart ]]; then",
            "  restarted=$((restarted + 1))",
            "  begin",
            "  continue",
            "fi",
        ]
    return [*lines, 'exit "$result"']
