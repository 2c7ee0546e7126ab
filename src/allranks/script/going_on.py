"""The part of a job script that decides what follows an attempt, and takes the way back to the queue.

A script that neither requeues nor restarts has none of it.
"""

from __future__ import annotations

from allranks.job.plan import Plan
from allranks.script.attempts import (
    END,
    GO_ON,
    MAX_ATTEMPTS,
    MAX_FRUITLESS,
    agent_words,
    follows_up,
    job_id,
    requeues,
)
from allranks.shell import quote


def going_on_lines(plan: Plan, own_folder: bool) -> list[str]:
    """The functions that decide what follows an attempt, and do it."""
    if not follows_up(plan):
        return []
    job = plan.job
    requeue = "--requeue " if requeues(plan) else ""
    most, idle = job.max_attempts or MAX_ATTEMPTS, job.max_fruitless or MAX_FRUITLESS
    return [
        f"policy=({requeue}--max-attempts={most} --max-fruitless={idle} --restarts={job.restarts or 0})",
        f"job={job_id(plan)}",
        *_decide(plan, most),
        *(_back_to_the_queue(plan, own_folder) if requeues(plan) else []),
    ]


def _decide(plan: Plan, most: int) -> list[str]:
    more = ' "$@"' if requeues(plan) else ""
    lines = [
        "decide() {  # sets next, what follows this attempt, and code, to leave with if nothing does",
        "  local facts answer",
        '  facts=$(scontrol show job -o "$job" 2>/dev/null || true)',
        '  answer=$(scontrol show node -o "$SLURM_JOB_NODELIST" 2>/dev/null |',
        f'    {agent_words(plan, "after")} "$ALLRANKS_ATTEMPT_DIR" "$code" \\',
        f'      "${{policy[@]}}" --nodes --job "$facts"{more} | tail -n 1) || true',
        "  if [[ $answer =~ ^([a-z]+)\\ ([0-9]+)$ ]]; then",
        "    next=${BASH_REMATCH[1]} code=${BASH_REMATCH[2]}",
        "    return 0",
        "  fi",
        f"  {END}",
        "  next=stop  # the rest is for nodes without allranks: on while the ranks leave on purpose",
        "  if [[ ! -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then",
        '    if ((code == 0)); then next="done"; fi',
    ]
    if requeues(plan):
        lines += [
            f"  elif ((attempt < {most})) && [[ $facts == *JobState=RUNNING* ]]; then",
            "    next=requeue",
        ]
    return [*lines, "  else", f"    code={GO_ON}", "  fi", "}"]


def _back_to_the_queue(plan: Plan, own_folder: bool) -> list[str]:
    own = "ALLRANKS_GO_ON_IN=$run_folder " if own_folder else ""
    array = '--array="$SLURM_ARRAY_TASK_ID" ' if plan.job.array else ""
    return [
        "go_on() {  # the job back into the queue; where Slurm refuses, a new one after this one",
        '  if [[ $next == requeue ]] && scontrol requeue "$job"; then return 0; fi',
        '  if [[ $(scontrol show job -o "$job" 2>/dev/null) =~ Restarts=([0-9]+) ]] &&',
        "    ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); then return 0; fi  # it is there already",
        "  resubmit",
        "}",
        "resubmit() {",
        '  local new options=(--parsable --dependency="afterany:$job")',
        "  if [[ -e $run_folder/excluded ]]; then",
        '    options+=(--exclude="$(<"$run_folder/excluded")")  # nodes that failed twice',
        "  fi",
        "  new=$(",
        f'    options+=({array}--chdir="$SLURM_SUBMIT_DIR")',
        '    for name in "${!SLURM@}" ALLRANKS_DEADLINE; do  # nothing of this job goes along',
        '      if [[ $name != SLURM_CONF ]]; then unset "$name"; fi',
        "    done",
        f'    {own}sbatch "${{options[@]}}" "$run_folder/job.sh"',
        "  ) || return 1",
        '  echo "${new%%;*}" >>"$run_folder/resubmitted"',
        '  echo "allranks: job ${new%%;*} goes on when this one has ended." >&2',
        "}",
        "settle() {  # Slurm ends the job: KILL follows, so the way back is taken before the ranks have left",
        "  passed=1 told=1",
        "  local code=143",
        "  decide --told --early",
        "  if [[ $next == requeue || $next == resubmit ]] && go_on; then settled=1; fi",
        "}",
    ]


def before_lines(plan: Plan) -> list[str]:
    """What is asked before the first launch of a job: earlier attempts that were killed, bad nodes."""
    if not requeues(plan):
        return []
    own = f" --exclude {quote(plan.job.exclude)}" if plan.job.exclude else ""
    return [
        "if ((attempt > 1)); then  # was the one before it killed, and are these nodes to be trusted",
        "  answer=$(scontrol show node -o 2>/dev/null |",
        f'    {agent_words(plan, "before")} "$ALLRANKS_ATTEMPT_DIR" "${{policy[@]}}" --nodes{own} | tail -n 1) || true',
        '  if [[ $answer == stop* ]]; then exit "${answer#stop }"; fi',
        "  if [[ $answer == avoid ]] && resubmit; then exit 0; fi",
        "fi",
    ]
