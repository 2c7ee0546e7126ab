#!/bin/bash
# Made by allranks VERSION from:
#   allranks script train.py
# Plain bash: read it, change it, submit it with sbatch.

#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
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
attempt=1  # mkdir decides between array tasks that start at the same time
until mkdir "$run_folder/attempts/$attempt" 2>/dev/null; do
  if [[ ! -e $run_folder/attempts/$attempt ]]; then break; fi  # mkdir prints why below
  attempt=$((attempt + 1))
done
export ALLRANKS_ATTEMPT_DIR=$run_folder/attempts/$attempt
mkdir "$ALLRANKS_ATTEMPT_DIR/ranks" "$ALLRANKS_ATTEMPT_DIR/failures"
printf '{"attempt": %d, "scheduler": "slurm", "job_id": "%s", "restart": %d, "launcher": "%s", "hosts": ["%s"], "array_task": "%s", "start": "%s"}\n' \
  "$attempt" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" accelerate "$SLURM_JOB_NODELIST" \
  "${SLURM_ARRAY_TASK_ID:-}" "$(date -u +%FT%T.%6NZ)" \
  >"$ALLRANKS_ATTEMPT_DIR/attempt.json"

# --- Environment -------------------------------------------------------------
export OMP_NUM_THREADS=2

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

# --- allranks on the nodes ---------------------------------------------------
# A log per rank, the first error last, CPUs near the GPUs.
export ALLRANKS_LAUNCHER=accelerate ALLRANKS_BIND=auto
export PYTHONPATH="$run_folder/lib${PYTHONPATH:+:$PYTHONPATH}"

# --- What every task runs ----------------------------------------------------
task() {
  export NODE_RANK=$SLURM_NODEID
  if [[ -n $interface && -e /sys/class/net/$interface ]]; then
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
  fi
  # Slurm signals every process of the step. The launcher would end its ranks before they have saved:
  # it runs with the signals blocked, and the agent around each rank unblocks them.
  trap '' USR1 USR2  # for the ranks; the launcher would die of them
  local rank=()
  if python -c 'import allranks.runtime.agent' 2>/dev/null; then rank=(python -m allranks.runtime.agent rank --); fi
  exec "${rank[@]:0:3}" ${rank[0]:+block-signals --} accelerate launch \
    --multi_gpu --num_processes 8 --num_machines 2 \
    --machine_rank "$NODE_RANK" \
    --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
    --rdzv_backend c10d \
    --no_python "${rank[@]}" python train.py --lr 0.1 --title 'it'"'"'s $HOME'
}
export -f task

# --- Launch ------------------------------------------------------------------
code=0
# Variables of the image replace those of the job, so these are set again inside.
srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 '--container-image=nvcr.io#nvidia/pytorch:24.10' --container-mounts="$PWD:$PWD,$ALLRANKS_RUN_DIR:$ALLRANKS_RUN_DIR",/data:/data --container-workdir="$PWD" bash -c 'export "$@" PYTHONPATH="$ALLRANKS_RUN_DIR/lib${PYTHONPATH:+:$PYTHONPATH}"; task' task "MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT" "WORLD_SIZE=$WORLD_SIZE" "LOCAL_WORLD_SIZE=$LOCAL_WORLD_SIZE" "OMP_NUM_THREADS=$OMP_NUM_THREADS" || code=$?

# --- End ---------------------------------------------------------------------
if ((code == 0)) && [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code=75; fi  # saved, not finished
if ((code == 0)); then touch "$finished"; fi
if ((code != 0)); then  # show the first error, leave with its code
  first=$("$(type -P python3 || type -P python)" -m allranks.runtime.agent summary "$ALLRANKS_ATTEMPT_DIR" "$code" | tail -n 1) || true
  if [[ $first =~ ^[1-9][0-9]*$ ]]; then code=$first; fi
fi
printf '{"exit_code": %d, "end": "%s"}\n' "$code" "$(date -u +%FT%T.%6NZ)" >"$ALLRANKS_ATTEMPT_DIR/end.json"
exit "$code"
