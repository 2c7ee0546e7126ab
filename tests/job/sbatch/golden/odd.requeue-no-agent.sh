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
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Files of the environment are on the cluster; functions run in tasks; quoted words are data.
# shellcheck disable=SC1090,SC1091,SC2016,SC2317
set -eo pipefail

# --- Environment -------------------------------------------------------------
export OMP_NUM_THREADS=8

# --- Rendezvous --------------------------------------------------------------
# One node: loopback, and a port that is free.
MASTER_ADDR=127.0.0.1
MASTER_PORT=$((20000 + SLURM_JOB_ID * 16 % 12000))
while (: <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((MASTER_PORT + 1))
done
export endpoint=$MASTER_ADDR:$MASTER_PORT
export MASTER_ADDR MASTER_PORT
export WORLD_SIZE=4 LOCAL_WORLD_SIZE=4

# --- What every task runs ----------------------------------------------------
task() {
  export NODE_RANK=$SLURM_NODEID
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  exec python train.py --lr 0.1 --title 'it'"'"'s $HOME'
}
export -f task

# --- Launch ------------------------------------------------------------------
code=0
srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 --distribution=block bash -c task || code=$?

# --- End ---------------------------------------------------------------------
# Exit code 75: the training has saved and asks for a requeue, which a cancelled job does not get.
if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < 99)) &&
  [[ $(timeout 30 scontrol show job -o "$SLURM_JOB_ID") == *JobState=RUNNING* ]]; then
  timeout 30 scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
