#!/bin/bash
# Made by allranks VERSION from:
#   allranks script train.py
# Plain bash: read it, change it, submit it with sbatch.

#SBATCH --job-name=train
#SBATCH --nodes=2
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
attempt=1  # mkdir decides between array tasks that start at the same time
until mkdir "$run_folder/attempts/$attempt" 2>/dev/null; do
  if [[ ! -e $run_folder/attempts/$attempt ]]; then break; fi  # mkdir prints why below
  attempt=$((attempt + 1))
done
export ALLRANKS_ATTEMPT_DIR=$run_folder/attempts/$attempt
mkdir "$ALLRANKS_ATTEMPT_DIR/ranks" "$ALLRANKS_ATTEMPT_DIR/failures"
printf '{"attempt": %d, "scheduler": "slurm", "job_id": "%s", "restart": %d, "launcher": "%s", "hosts": ["%s"], "array_task": "%s", "start": "%s"}\n' \
  "$attempt" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" mpirun "$SLURM_JOB_NODELIST" \
  "${SLURM_ARRAY_TASK_ID:-}" "$(date -u +%FT%T.%6NZ)" \
  >"$ALLRANKS_ATTEMPT_DIR/attempt.json"

# --- Environment -------------------------------------------------------------
# A batch shell is not a login shell: it may not have the module command yet.
for file in "${MODULESHOME-}/init/bash" /etc/profile.d/{modules,lmod,z00_lmod}.sh \
  /usr/share/{lmod/lmod,modules,Modules}/init/bash; do
  if type -t module >/dev/null; then break; fi
  if [[ -r $file ]]; then source "$file" || true; fi
done
if ! type -t module >/dev/null; then
  echo "No module command on $HOSTNAME: set MODULESHOME to where Modules or Lmod is installed." >&2
  exit 1
fi
module purge || true  # Modules 5 reports sticky modules as an error
module load gcc/12
module load cuda/12.4
wanted=(gcc/12 cuda/12.4)
for name in "${wanted[@]}"; do  # Modules 3 always exits with 0
  if [[ ${MODULE_VERSION-} == 3.* && :${LOADEDMODULES-}: != *:"${name%%/*}"[:/]* ]]; then
    echo "module load $name: no such module was loaded." >&2
    exit 1
  fi
done
conda=$(type -P conda || echo "${CONDA_EXE:-conda}")  # a batch shell may not have it in PATH
conda_root=$("$conda" info --base)
source "$conda_root"/etc/profile.d/conda.sh
conda activate torch || exit
export DATA='/my data'
export OMP_NUM_THREADS=8

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
export ALLRANKS_LAUNCHER=mpirun ALLRANKS_BIND=auto
export PYTHONPATH="$run_folder/lib${PYTHONPATH:+:$PYTHONPATH}"
rank=(python -m allranks.runtime.agent rank --peers --)
if ! python -c 'import allranks.runtime.agent' 2>/dev/null; then rank=(bash -c 'export RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID} NODE_RANK=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / LOCAL_WORLD_SIZE)); exec "$@"' rank); fi

# --- Launch ------------------------------------------------------------------
if [[ -n $interface && -e /sys/class/net/$interface ]]; then
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
fi
if [[ $(mpirun --version) == *"Open MPI"* ]]; then
  mpirun=(mpirun -np 8 --map-by ppr:4:node --bind-to none)
  for name in PATH LD_LIBRARY_PATH PYTHONPATH MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE OMP_NUM_THREADS NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME ALLRANKS_RUN_DIR ALLRANKS_ATTEMPT_DIR ALLRANKS_LAUNCHER ALLRANKS_BIND ALLRANKS_FRAMEWORK DATA; do
    if [[ -v $name ]]; then mpirun+=(-x "$name"); fi
  done
else  # MPICH and Intel MPI
  mpirun=(mpirun -n 8 -ppn 4)
fi
code=0
"${mpirun[@]}" \
  "${rank[@]}" python train.py --lr 0.1 --title 'it'"'"'s $HOME' || code=$?

# --- End ---------------------------------------------------------------------
if ((code == 0)) && [[ -e $ALLRANKS_ATTEMPT_DIR/interrupted ]]; then code=75; fi  # saved, not finished
if ((code == 0)); then touch "$finished"; fi
if ((code != 0)); then  # show the first error, leave with its code
  first=$(python -m allranks.runtime.agent summary "$ALLRANKS_ATTEMPT_DIR" "$code" | tail -n 1) || true
  if [[ $first =~ ^[1-9][0-9]*$ ]]; then code=$first; fi
fi
printf '{"exit_code": %d, "end": "%s"}\n' "$code" "$(date -u +%FT%T.%6NZ)" >"$ALLRANKS_ATTEMPT_DIR/end.json"
exit "$code"
