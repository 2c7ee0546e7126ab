"""The part of a job script that carries out what the agent decides after an attempt.

A script that neither requeues nor restarts has none of it. The rules are the agent's (``attempt-end``). The
shell asks Slurm for it, since a container may have no scontrol, and acts only while the job is in the
state that the decision was made on: a job that was cancelled meanwhile must not come back.
"""

from __future__ import annotations

from allranks.core.shell import quote
from allranks.job.plan import Plan
from allranks.job.sbatch.run_folder_lines import (
    END,
    SAVED,
    agent_words,
    asks_agent,
    follows_up,
    job_id,
)

PAUSES = "0 0 5 10 20 40 80 ''"
"""Seconds before each further try; a changed state and a refusal are answered at once."""


def requeue_lines(plan: Plan, own_folder: bool) -> list[str]:
    """Return the functions that ask what follows an attempt, and do it."""
    if not follows_up(plan):
        return []
    policy = plan.requeue_policy
    requeue = "--requeue " if policy.requeue else ""
    return [
        f"policy=({requeue}--max-attempts={policy.max_attempts} --max-no-progress={policy.max_no_progress}"
        f" --restarts={policy.restarts})",
        f"job={job_id(plan)} terminated=''" + (" requeued=''" if plan.requeues else ""),
        'slurm() { SLURM_TIME_FORMAT=standard timeout 30 scontrol "$@"; }  # the user may have set another format',
        *(_follow_up_and_requeue(plan) if plan.requeues else _follow_up(plan)),
        *_without_agent(plan),
        *(_requeue(plan, own_folder) if plan.requeues else []),
        "on_exit() {  # with the exit code of a script that fails before it launches the ranks",
        "  code=$1",
        "  if [[ -e $ALLRANKS_ATTEMPT_DIR/end.json ]]; then return 0; fi",
        "  if ((code == 0)); then code=143 terminated=1; fi  # by a signal",
        "  follow_up --not-started",
        '  exit "$result"',
        "}",
    ]


def _follow_up(plan: Plan) -> list[str]:
    return [
        "follow_up() {  # sets next, what follows this attempt, and result, the exit code",
        "  local facts answer",
        *(f"  {line}" for line in _ask(plan, "")),
        '  read -r next result _ <<<"$answer"',
        "}",
    ]


def _follow_up_and_requeue(plan: Plan) -> list[str]:
    return [
        "follow_up() {  # sets next, what follows this attempt, and result, the exit code; requeues the job",
        "  local pause facts answer option state id=$job refused=''",
        f"  for pause in {PAUSES}; do  # until Slurm does it",
        *(
            f"    {line}"
            for line in _ask(plan, ' --retry-after="$pause" ${refused:+"--refused=$refused"}')
        ),
        '    read -r next result option state <<<"$answer"',
        "    if [[ $next != requeue && $next != resubmit ]]; then return 0; fi",
        '    if [[ $(slurm show job -o "$job" 2>/dev/null) == *"$state "* && ! -e $run_folder/cancelled ]]; then',
        '      if "$next" "$option"; then',
        '        if [[ -e $run_folder/cancelled ]]; then scancel "$id"; fi',
        "        requeued=1 result=0",
        "        return 0",
        "      fi",
        "      refused=$next",
        "    fi  # else Slurm or a user has ended it meanwhile",
        '    sleep "${pause:-0}"',
        "  done",
        "}",
    ]


def _ask(plan: Plan, options: str) -> list[str]:
    asked = [
        'answer=$(slurm show node -o "$SLURM_JOB_NODELIST" 2>/dev/null |',
        f'  {agent_words(plan, "attempt-end")} "$ALLRANKS_ATTEMPT_DIR" "$code" "${{policy[@]}}" \\',
        f'    --nodes --job "$facts" ${{terminated:+--terminated}}{options} "$@" |',
        "  tail -n 1) || true",
    ]
    if asks_agent(plan):
        asked = ["if [[ $ALLRANKS_AGENT != off ]]; then", *(f"  {line}" for line in asked), "fi"]
    return [
        "facts=$(slurm show job -o \"$job\" 2>/dev/null || true) answer=''",
        *asked,
        "if [[ ! $answer =~ ^[a-z]+\\ [0-9]+ ]]; then answer=$(without_agent); fi",
    ]


def _without_agent(plan: Plan) -> list[str]:
    again = f"((code == {SAVED} && attempt < {plan.requeue_policy.max_attempts}))"
    requeue = f'    if {again}; then next="requeue {SAVED} -- JobState=RUNNING"; fi'
    return [
        "without_agent() {  # where allranks is not installed: the exit code alone decides",
        f"  if [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code={SAVED}; fi",
        f"  {END}",
        '  local next="stop $code"',
        '  if [[ -z $terminated && "$facts " == *"JobState=RUNNING "* && ! -e $run_folder/cancelled ]]; then',
        '    if ((code == 0)); then next="done 0"; fi',
        *([requeue] if plan.requeues else []),
        "  fi",
        '  echo "$next"',
        "}",
    ]


def _requeue(plan: Plan, own_folder: bool) -> list[str]:
    resume = "ALLRANKS_RESUME_DIR=$run_folder " if own_folder else ""
    array = '--array="$SLURM_ARRAY_TASK_ID" ' if plan.job.array else ""
    return [
        'requeue() { slurm requeue "$job"; }',
        "resubmit() {  # a new job that starts after this one, with a further option; sets id",
        '  id=$(submit "$1") || return 1',
        "  id=${id%%;*}  # without the name of the cluster",
        '  echo "$id" | tee "$ALLRANKS_ATTEMPT_DIR/resubmitted" >>"$run_folder/resubmitted"',
        '  echo "allranks: job $id resumes the run after this one." >&2',
        "}",
        "submit() (  # without the variables of this job",
        f'  options=(--parsable --dependency="afterany:$job" {array}--chdir="$SLURM_SUBMIT_DIR")',
        '  for name in "${!SLURM@}" ALLRANKS_DEADLINE; do',
        '    if [[ $name != SLURM_CONF ]]; then unset "$name"; fi',
        "  done",
        f'  {resume}sbatch "${{options[@]}}" "$@" "$run_folder/job.sh"',
        ")",
        "on_term() {  # Slurm ends the job and sends KILL soon: requeue before the ranks have exited",
        "  trap 'terminated=1' TERM",
        "  passed=1 terminated=1",
        "  local code=143",
        "  if [[ -z $requeued ]]; then follow_up --ranks-running; fi",
        "  trap on_term TERM",
        "}",
    ]


def earlier_attempt_lines(plan: Plan) -> list[str]:
    """Return the lines that ask before the first launch of a job about killed attempts and bad nodes."""
    if not plan.requeues:
        return []
    own = f" --exclude {quote(plan.job.exclude)}" if plan.job.exclude else ""
    on = " && [[ $ALLRANKS_AGENT != off ]]" if asks_agent(plan) else ""
    return [
        f"if ((attempt > 1)){on}; then  # record the end of one that was killed; avoid nodes that failed twice",
        "  answer=$(slurm show node -o 2>/dev/null |",
        f'    {agent_words(plan, "attempt-start")} "$ALLRANKS_ATTEMPT_DIR" "${{policy[@]}}" \\',
        f"      --nodes{own} | tail -n 1) || true",
        '  if [[ $answer == stop* ]]; then exit "${answer#stop }"; fi',
        '  if [[ $answer == resubmit* ]] && resubmit "${answer#resubmit }"; then exit 0; fi',
        "fi",
    ]
