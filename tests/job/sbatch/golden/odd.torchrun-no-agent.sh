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

# --- What every task runs ----------------------------------------------------
task() {
  export NODE_RANK=$SLURM_NODEID
  if [[ -n $interface && -e /sys/class/net/$interface ]]; then
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
  fi
  local is_host=$((NODE_RANK == 0))
  trap '' USR1 USR2  # for the ranks; the launcher would die of them
  exec torchrun \
    --nnodes 2 --nproc-per-node 4 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$endpoint" \
    --rdzv-conf=is_host="$is_host" \
    train.py --lr 0.1 --title 'it'"'"'s $HOME'
}
export -f task

# --- Launch ------------------------------------------------------------------
code=0
srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 bash -c task || code=$?

# --- End ---------------------------------------------------------------------
exit "$code"
