#!/bin/bash
# Made by allranks VERSION from:
#   allranks script train.py
# Plain bash: read it, change it, submit it with sbatch.

#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

# Files of the environment are on the cluster; functions run in tasks; quoted words are data.
# shellcheck disable=SC1090,SC1091,SC2016,SC2317
set -eo pipefail

# --- Folder ------------------------------------------------------------------
run_folder="${SLURM_SUBMIT_DIR:-$PWD}/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$run_folder/attempts"
finished=$run_folder/finished
if [[ -e $finished ]]; then
  echo "This run has finished already." >&2
  exit 0
fi
export ALLRANKS_RUN_DIR=$run_folder
end=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null || true)}
if [[ $end =~ ^[0-9]+$ ]]; then export ALLRANKS_DEADLINE=$end; fi  # the job's end, in seconds

# --- After an attempt --------------------------------------------------------
policy=(--max-attempts=100 --max-no-progress=3 --restarts=2)
job=$SLURM_JOB_ID terminated=''
slurm() { SLURM_TIME_FORMAT=standard timeout 30 scontrol "$@"; }  # the user may have set another format
follow_up() {  # sets next, what follows this attempt, and result, the exit code
  local facts answer
  facts=$(slurm show job -o "$job" 2>/dev/null || true) answer=''
  if [[ $ALLRANKS_AGENT != off ]]; then
    answer=$(slurm show node -o "$SLURM_JOB_NODELIST" 2>/dev/null |
      python -m allranks.runtime.agent attempt-end "$ALLRANKS_ATTEMPT_DIR" "$code" "${policy[@]}" \
        --nodes --job "$facts" ${terminated:+--terminated} "$@" |
      tail -n 1) || true
  fi
  if [[ ! $answer =~ ^[a-z]+\ [0-9]+ ]]; then answer=$(without_agent); fi
  read -r next result _ <<<"$answer"
}
without_agent() {  # where allranks is not installed: the exit code alone decides
  if [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code=75; fi
  printf '{"exit_code": %d, "end": "%s"}\n' "$code" "$(date -u +%FT%T.%6NZ)" >"$ALLRANKS_ATTEMPT_DIR/end.json"
  local next="stop $code"
  if [[ -z $terminated && "$facts " == *"JobState=RUNNING "* && ! -e $run_folder/cancelled ]]; then
    if ((code == 0)); then next="done 0"; fi
  fi
  echo "$next"
}
on_exit() {  # with the exit code of a script that fails before it launches the ranks
  code=$1
  if [[ -e $ALLRANKS_ATTEMPT_DIR/end.json ]]; then return 0; fi
  if ((code == 0)); then code=143 terminated=1; fi  # by a signal
  follow_up --not-started
  exit "$result"
}

# --- Attempt -----------------------------------------------------------------
begin() {
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
}
begin
ALLRANKS_AGENT=off  # until it is found below
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
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  local rank=()
  if [[ $ALLRANKS_AGENT == on ]]; then rank=(python -m allranks.runtime.agent rank --); fi
  exec "${rank[@]}" python train.py --lr 0.1 --title 'it'"'"'s $HOME'
}
export -f task

restarted=0
while :; do  # one attempt per iteration; failed ranks are restarted in the next
  # --- Rendezvous --------------------------------------------------------------
  # One node: loopback, and a port that is free.
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=$(($((20000 + SLURM_JOB_ID * 16 % 12000)) + restarted))
  while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
  done
  export endpoint=$MASTER_ADDR:$MASTER_PORT
  export MASTER_ADDR MASTER_PORT
  export WORLD_SIZE=4 LOCAL_WORLD_SIZE=4

  # --- Launch ------------------------------------------------------------------
  code=0
  srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 --distribution=block bash -c task || code=$?

  # --- End ---------------------------------------------------------------------
  follow_up
  if [[ $next == "done" ]]; then touch "$finished"; fi
  if [[ $next == restart ]]; then
    restarted=$((restarted + 1))
    begin
    continue
  fi
  exit "$result"
done
