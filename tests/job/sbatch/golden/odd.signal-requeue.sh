#!/bin/bash
# Made by allranks VERSION from:
#   allranks script train.py
# Plain bash: read it, change it, submit it with sbatch.

#SBATCH --job-name=train
#SBATCH --signal=B:USR1@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Files of the environment are on the cluster; functions run in tasks; quoted words are data.
# shellcheck disable=SC1090,SC1091,SC2016,SC2317
set -eo pipefail

# --- Folder ------------------------------------------------------------------
run_folder=${ALLRANKS_RESUME_DIR:-"${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"}
mkdir -p "$run_folder/attempts"
[[ -e $run_folder/job.sh ]] || cp "$0" "$run_folder/job.sh"  # to submit it again
finished=$run_folder/finished
if [[ -e $finished ]]; then
  echo "This run has finished already." >&2
  exit 0
fi
if [[ -e $run_folder/cancelled ]]; then
  echo "This run was cancelled. Resume it with: allranks resume ${run_folder##*/}" >&2
  exit 143
fi
export ALLRANKS_RUN_DIR=$run_folder
end=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null || true)}
if [[ $end =~ ^[0-9]+$ ]]; then export ALLRANKS_DEADLINE=$end; fi  # the job's end, in seconds

# --- After an attempt --------------------------------------------------------
policy=(--requeue --max-attempts=100 --max-no-progress=3 --restarts=0)
job=$SLURM_JOB_ID terminated='' requeued=''
slurm() { SLURM_TIME_FORMAT=standard timeout 30 scontrol "$@"; }  # the user may have set another format
follow_up() {  # sets next, what follows this attempt, and result, the exit code; requeues the job
  local pause facts answer option state id=$job refused=''
  for pause in 0 0 5 10 20 40 80 ''; do  # until Slurm does it
    facts=$(slurm show job -o "$job" 2>/dev/null || true) answer=''
    if [[ $ALLRANKS_AGENT != off ]]; then
      answer=$(slurm show node -o "$SLURM_JOB_NODELIST" 2>/dev/null |
        python -m allranks.runtime.agent attempt-end "$ALLRANKS_ATTEMPT_DIR" "$code" "${policy[@]}" \
          --nodes --job "$facts" ${terminated:+--terminated} --retry-after="$pause" ${refused:+"--refused=$refused"} "$@" |
        tail -n 1) || true
    fi
    if [[ ! $answer =~ ^[a-z]+\ [0-9]+ ]]; then answer=$(without_agent); fi
    read -r next result option state <<<"$answer"
    if [[ $next != requeue && $next != resubmit ]]; then return 0; fi
    if [[ $(slurm show job -o "$job" 2>/dev/null) == *"$state "* && ! -e $run_folder/cancelled ]]; then
      if "$next" "$option"; then
        if [[ -e $run_folder/cancelled ]]; then scancel "$id"; fi
        requeued=1 result=0
        return 0
      fi
      refused=$next
    fi  # else Slurm or a user has ended it meanwhile
    sleep "${pause:-0}"
  done
}
without_agent() {  # where allranks is not installed: the exit code alone decides
  if [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code=75; fi
  printf '{"exit_code": %d, "end": "%s"}\n' "$code" "$(date -u +%FT%T.%6NZ)" >"$ALLRANKS_ATTEMPT_DIR/end.json"
  local next="stop $code"
  if [[ -z $terminated && "$facts " == *"JobState=RUNNING "* && ! -e $run_folder/cancelled ]]; then
    if ((code == 0)); then next="done 0"; fi
    if ((code == 75 && attempt < 100)); then next="requeue 75 -- JobState=RUNNING"; fi
  fi
  echo "$next"
}
requeue() { slurm requeue "$job"; }
resubmit() {  # a new job that starts after this one, with a further option; sets id
  id=$(submit "$1") || return 1
  id=${id%%;*}  # without the name of the cluster
  echo "$id" | tee "$ALLRANKS_ATTEMPT_DIR/resubmitted" >>"$run_folder/resubmitted"
  echo "allranks: job $id resumes the run after this one." >&2
}
submit() (  # without the variables of this job
  options=(--parsable --dependency="afterany:$job" --chdir="$SLURM_SUBMIT_DIR")
  for name in "${!SLURM@}" ALLRANKS_DEADLINE; do
    if [[ $name != SLURM_CONF ]]; then unset "$name"; fi
  done
  ALLRANKS_RESUME_DIR=$run_folder sbatch "${options[@]}" "$@" "$run_folder/job.sh"
)
on_term() {  # Slurm ends the job and sends KILL soon: requeue before the ranks have exited
  trap 'terminated=1' TERM
  passed=1 terminated=1
  local code=143
  if [[ -z $requeued ]]; then follow_up --ranks-running; fi
  trap on_term TERM
}
on_exit() {  # with the exit code of a script that fails before it launches the ranks
  code=$1
  if [[ -e $ALLRANKS_ATTEMPT_DIR/end.json ]]; then return 0; fi
  if ((code == 0)); then code=143 terminated=1; fi  # by a signal
  follow_up --not-started
  exit "$result"
}

# --- Attempt -----------------------------------------------------------------
attempt=1  # mkdir decides between array tasks that start at the same time
until mkdir "$run_folder/attempts/$attempt" 2>/dev/null; do
  if [[ ! -e $run_folder/attempts/$attempt ]]; then break; fi  # mkdir prints why below
  attempt=$((attempt + 1))
done
export ALLRANKS_ATTEMPT_DIR=$run_folder/attempts/$attempt
mkdir "$ALLRANKS_ATTEMPT_DIR/ranks" "$ALLRANKS_ATTEMPT_DIR/failures"
printf '{"attempt": %d, "scheduler": "slurm", "job_id": "%s", "restart": %d, "launcher": "%s", "hosts": ["%s"], "array_task": "%s", "start": "%s"}\n' \
  "$attempt" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" srun "$SLURM_JOB_NODELIST" \
  "${SLURM_ARRAY_TASK_ID:-}" "$(date -u +%FT%T.%6NZ)" \
  >"$ALLRANKS_ATTEMPT_DIR/attempt.json"
ALLRANKS_AGENT=off  # until it is found below
trap 'terminated=1' TERM
trap 'on_exit $?' EXIT

# --- Environment -------------------------------------------------------------
export OMP_NUM_THREADS=8

# --- allranks on the nodes ---------------------------------------------------
# A log per rank, the first error last, CPUs near the GPUs.
export ALLRANKS_LAUNCHER=srun ALLRANKS_BIND=auto
export PYTHONPATH="$run_folder/lib${PYTHONPATH:+:$PYTHONPATH}"
export ALLRANKS_AGENT=on
if ! python -c 'import allranks.runtime.agent' 2>/dev/null; then
  echo "allranks is not installed in this environment: the job runs without it." >&2
  ALLRANKS_AGENT=off
fi

# --- What every task runs ----------------------------------------------------
task() {
  export NODE_RANK=$SLURM_NODEID
  if [[ -n $interface && -e /sys/class/net/$interface ]]; then
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
  fi
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  local rank=()
  if [[ $ALLRANKS_AGENT == on ]]; then rank=(python -m allranks.runtime.agent rank --); fi
  exec "${rank[@]}" python train.py --lr 0.1 --title 'it'"'"'s $HOME'
}
export -f task

# --- Earlier attempts --------------------------------------------------------
if ((attempt > 1)) && [[ $ALLRANKS_AGENT != off ]]; then  # record the end of one that was killed; avoid nodes that failed twice
  answer=$(slurm show node -o 2>/dev/null |
    python -m allranks.runtime.agent attempt-start "$ALLRANKS_ATTEMPT_DIR" "${policy[@]}" \
      --nodes | tail -n 1) || true
  if [[ $answer == stop* ]]; then exit "${answer#stop }"; fi
  if [[ $answer == resubmit* ]] && resubmit "${answer#resubmit }"; then exit 0; fi
fi

# --- Rendezvous --------------------------------------------------------------
# An address of the head node that the others reach by route, and a port that is free there.
find_endpoint() {  # head, another node, interface or '', first port to try
  local address='' device=$3 port=$4 route
  if [[ -n $device ]]; then
    address=$(ip -o addr show dev "$device" scope global | awk 'NR == 1 { sub("/.*", "", $4); print $4 }')
  else
    route=$(ip -o route get "$(getent ahosts "$2" | awk 'NR == 1 { print $1 }')" 2>/dev/null || true)
    if [[ $route =~ \ dev\ ([^ ]+) ]]; then device=${BASH_REMATCH[1]}; fi
    if [[ $route =~ \ src\ ([^ ]+) ]]; then address=${BASH_REMATCH[1]}; fi
  fi
  if [[ -z $address || $device == lo ]]; then address=$1 device=; fi
  while (: <>"/dev/tcp/$address/$port") 2>/dev/null || (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    port=$((port + 1))
  done
  echo "$address" "$port" "$device"
}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if ((${#hosts[@]} == 0)); then exit 1; fi  # scontrol has printed why
head=${hosts[0]} other=${hosts[-1]}
find=(find_endpoint "$head" "$other" '' $((20000 + SLURM_JOB_ID * 16 % 12000)))
if [[ $head != "${SLURMD_NODENAME:-}" ]]; then
  export -f find_endpoint
  find=(srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" bash -c 'find_endpoint "$@"' "${find[@]}")
fi
if ! read -r MASTER_ADDR MASTER_PORT interface < <("${find[@]}"); then
  echo "No address of $head was found that the other nodes reach." >&2
  exit 1
fi
export interface endpoint=$MASTER_ADDR:$MASTER_PORT
if [[ $MASTER_ADDR == *:* ]]; then endpoint=[$MASTER_ADDR]:$MASTER_PORT; fi  # IPv6
export MASTER_ADDR MASTER_PORT
export WORLD_SIZE=8 LOCAL_WORLD_SIZE=4

# --- Launch ------------------------------------------------------------------
code=0
trap on_term TERM
if [[ -n $terminated ]]; then on_term; fi  # before the launch
if [[ -n $requeued ]]; then exit 0; fi
trap 'passed=1; kill -USR1 "$!" || :' USR1  # srun passes it on to every task
srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 --distribution=block bash -c task &
launch=$!
passed=1
while ((passed)); do passed=0 code=0; wait "$launch" || code=$?; done  # a signal ends a wait
trap 'terminated=1' TERM

# --- End ---------------------------------------------------------------------
if [[ -n $requeued ]]; then exit 0; fi
follow_up
if [[ $next == "done" ]]; then touch "$finished"; fi
exit "$result"
