"""The part of a job script that decides what follows an attempt, and takes the way back to the queue.

A script that neither requeues nor restarts has none of it. The rules are the agent's (``after``); bash
asks it, does what it says, and never acts on a state of the job that has changed meanwhile.
"""

from __future__ import annotations

from allranks.core.shell import quote
from allranks.job.plan import Plan
from allranks.job.sbatch.attempt_lines import (
    END,
    SAVED,
    agent_words,
    asks_agent,
    follows_up,
    job_id,
    limits,
    requeues,
)

PAUSES = "0 0 5 10 20 40 80"
"""Seconds before each further try: a state that has changed and a refusal are answered at once."""


def going_on_lines(plan: Plan, own_folder: bool) -> list[str]:
    """The functions that decide what follows an attempt, and do it."""
    if not follows_up(plan):
        return []
    requeue = "--requeue " if requeues(plan) else ""
    policy = limits(plan)
    return [
        f"policy=({requeue}--max-attempts={policy.max_attempts} --max-no-progress={policy.max_no_progress}"
        f" --restarts={policy.restarts})",
        f"job={job_id(plan)}",
        *(["told='' settled=''"] if requeues(plan) else []),
        "slurm() {  # it may hang, and write times as the user likes them",
        '  SLURM_TIME_FORMAT=standard timeout 30 scontrol "$@"',
        "}",
        *_decide(plan, policy.max_attempts),
        *(_back_to_the_queue(plan, own_folder) if requeues(plan) else []),
        *_unstarted(plan),
    ]


def _decide(plan: Plan, most: int) -> list[str]:
    told = " ${told:+--told}" if requeues(plan) else ""
    asked = [
        'answer=$(slurm show node -o "$SLURM_JOB_NODELIST" 2>/dev/null |',
        f'  {agent_words(plan, "after")} "$ALLRANKS_ATTEMPT_DIR" "$code" \\',
        f'    "${{policy[@]}}" --nodes --job "$facts"{told} "$@" | tail -n 1) || true',
    ]
    if asks_agent(plan):
        asked = ["if [[ $ALLRANKS_AGENT != off ]]; then", *(f"  {line}" for line in asked), "fi"]
    return [
        "decide() {  # sets next, what follows this attempt, and result, to leave with if nothing does",
        "  local answer=''",
        '  facts=$(slurm show job -o "$job" 2>/dev/null || true)',
        *(f"  {line}" for line in asked),
        "  if [[ $answer =~ ^([a-z]+)\\ ([0-9]+)$ ]]; then",
        "    next=${BASH_REMATCH[1]} result=${BASH_REMATCH[2]}",
        "    return 0",
        "  fi",
        *(f"  {line}" for line in _decide_alone(plan, most)),
        "}",
    ]


def _decide_alone(plan: Plan, most: int) -> list[str]:
    """For nodes without allranks: on while the ranks leave on purpose, and nobody has ended the job."""
    ended = "$facts != *JobState=RUNNING*"
    if requeues(plan):
        ended = f"-n $told || -e $run_folder/cancelled || {ended}"
    lines = [
        "# Without allranks on the nodes: on while the ranks leave on purpose.",
        f"if [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code={SAVED}; fi",
        END,
        "next=stop result=$code",
        f"if [[ {ended} ]]; then return 0; fi",
        'if ((code == 0)); then next="done"; fi',
    ]
    if requeues(plan):
        lines.append(f"if ((code == {SAVED} && attempt < {most})); then next=requeue; fi")
    return lines


def _back_to_the_queue(plan: Plan, own_folder: bool) -> list[str]:
    return [
        "go_on() {  # takes the way that was decided, on the state of the job that it was decided on",
        "  local pause refused=''",
        f"  for pause in {PAUSES}; do",
        "    if [[ $next != requeue && $next != resubmit ]]; then return 0; fi",
        '    if as_decided && "$next"; then',
        "      settled=1 result=0",
        "      return 0",
        "    fi",
        '    sleep "$pause"  # a controller that is away comes back',
        '    decide "$@" ${refused:+--refused}',
        "  done",
        '  decide "$@" --stuck',
        f"  result={SAVED}",
        "}",
        "as_decided() {  # a job that was cancelled meanwhile must not come back",
        "  local state='JobState=[^ ]+( Reason=[^ ]+)?' now",
        '  now=$(slurm show job -o "$job" 2>/dev/null || true)',
        "  if [[ ! $now =~ $state ]]; then return 1; fi",
        '  [[ $facts == *"${BASH_REMATCH[0]}"* && ! -e $run_folder/cancelled ]]',
        "}",
        "requeue() {",
        "  refused=1",
        '  slurm requeue "$job" || return 1',
        '  if [[ -e $run_folder/cancelled ]]; then scancel "$job"; fi',
        "}",
        *_resubmit(plan, own_folder),
        "settle() {  # Slurm ends the job: KILL follows, so the way back is taken before the ranks have left",
        "  trap 'told=1' TERM",
        "  passed=1 told=1",
        "  local code=143",
        "  decide --early",
        "  go_on --early",
        "  trap settle TERM",
        "}",
    ]


def _resubmit(plan: Plan, own_folder: bool) -> list[str]:
    own = "ALLRANKS_RESUME_DIR=$run_folder " if own_folder else ""
    array = '--array="$SLURM_ARRAY_TASK_ID" ' if plan.job.array else ""
    return [
        "resubmit() {  # a new job that starts after this one, once for each attempt",
        "  local new exclude=() sent=$ALLRANKS_ATTEMPT_DIR/resubmitted",
        "  if [[ -e $sent ]]; then return 0; fi",
        "  if [[ -e $run_folder/excluded ]]; then  # nodes that failed twice",
        '    exclude=(--exclude="$(<"$run_folder/excluded")")',
        "  fi",
        '  if ! new=$(submit "${exclude[@]}"); then',
        "    if ((${#exclude[@]} == 0)); then return 1; fi",
        "    new=$(submit) || return 1  # a node of that list may have left the cluster",
        "  fi",
        '  echo "${new%%;*}" | tee "$sent" >>"$run_folder/resubmitted"',
        '  echo "allranks: job ${new%%;*} goes on when this one has ended." >&2',
        '  if [[ -e $run_folder/cancelled ]]; then scancel "${new%%;*}"; fi',
        "}",
        "submit() (  # a shell of its own: nothing of this job goes along",
        f'  options=(--parsable --dependency="afterany:$job" {array}--chdir="$SLURM_SUBMIT_DIR")',
        '  for name in "${!SLURM@}" ALLRANKS_DEADLINE; do',
        '    if [[ $name != SLURM_CONF ]]; then unset "$name"; fi',
        "  done",
        f'  {own}sbatch "${{options[@]}}" "$@" "$run_folder/job.sh"',
        ")",
    ]


def _unstarted(plan: Plan) -> list[str]:
    return [
        "unstarted() {  # the script failed before its launch: that too is an end",
        "  code=$?",
        "  if [[ -e $ALLRANKS_ATTEMPT_DIR/end.json ]]; then return 0; fi",
        "  local how=--unstarted",
        "  if ((code == 0)); then code=143 how=--told; fi  # a signal ended it",
        '  decide "$how"',
        *(['  go_on "$how"'] if requeues(plan) else []),
        '  exit "$result"',
        "}",
    ]


def before_lines(plan: Plan) -> list[str]:
    """What is asked before the first launch of a job: earlier attempts that were killed, bad nodes."""
    if not requeues(plan):
        return []
    own = f" --exclude {quote(plan.job.exclude)}" if plan.job.exclude else ""
    on = " && [[ $ALLRANKS_AGENT != off ]]" if asks_agent(plan) else ""
    return [
        f"if ((attempt > 1)){on}; then  # was the one before it killed, and are these nodes to be trusted",
        "  answer=$(slurm show node -o 2>/dev/null |",
        f'    {agent_words(plan, "before")} "$ALLRANKS_ATTEMPT_DIR" "${{policy[@]}}" --nodes{own} | tail -n 1) || true',
        '  if [[ $answer == stop* ]]; then exit "${answer#stop }"; fi',
        "  if [[ $answer == avoid ]] && resubmit; then exit 0; fi",
        "fi",
    ]
