"""Whole job scripts of the kinds that people copy, with exactly the findings that they deserve."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.lint.finding import NOTE
from allranks.lint.linter import Settings, lint, lint_text

FILES = {
    "srun_env.sh": """#!/bin/bash
#SBATCH -p grete
#SBATCH --nodes=1                # can be increased
#SBATCH --gpus-per-node=A100:2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:05:00
#SBATCH --output=/dev/null       # may be deleted
#SBATCH --error=/dev/null

LOGS="$HOME/output"
mkdir -p $LOGS
exec > "$LOGS/job-${SLURM_JOB_ID}.out" 2>&1
source $HOME/conda/etc/profile.d/conda.sh
conda activate torch_env
export MASTER_PORT=29400
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
echo "MASTER_PORT="$MASTER_PORT
srun python $HOME/train/distributed.py
""",
    "one_node_torchrun.sh": """#!/bin/bash
#SBATCH --job-name=multi_gpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-task=4
#SBATCH --mem=10G

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname -I | awk '{print $1}')
export LOGLEVEL=INFO

srun torchrun --nnodes 1 --nproc_per_node 2 --rdzv_id $RANDOM --rdzv_backend c10d \\
  --rdzv_endpoint $head_node_ip:29501 train.py --compute_setup auto
""",
    "container.sh": """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=56
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=29500
srun singularity exec $SIF bash -c 'export CXX=g++-12; $WITH_CONDA && source env/bin/activate && torchrun \\
  --nproc_per_node 8 --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID --master_addr $MASTER_ADDR \\
  --master_port $MASTER_PORT vit.py --deepspeed --deepspeed_config ds_config.json'
""",
    "ds_config.json": '{\n  "zero_optimization": {\n    "stage": 1\n  },\n  "fp16": {\n    "enabled": false,\n  }\n}\n',
    "worker_job.sh": """#!/bin/bash
#SBATCH --partition=Main
#SBATCH --time=00:20:00
#SBATCH --comment="PyTorch on several nodes."
#SBATCH --gres=gpu:4
##SBATCH --ntasks=2

#SBATCH --wait-all-nodes=1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=6
#SBATCH --output=%x-%j.out

readonly ADDRESS=$SLURMD_NODENAME
readonly PORT="12234"
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
readonly srun='srun --output=%x-%j.%t.out'
env
$srun bash \\
   worker.sh \\
      $ADDRESS \\
      $PORT &
wait
""",
    "worker.sh": """#!/bin/bash
source /opt/miniforge3/bin/activate
conda activate torch
readonly ADDRESS=$1
readonly PORT=$2
python \\
   -m torch.distributed.launch \\
      --nproc_per_node=4 \\
      --nnodes=$SLURM_NTASKS \\
      --node_rank=$SLURM_NODEID \\
      --master_addr=$ADDRESS \\
      --master_port=$PORT \\
      main.py --batch_size 128 &
wait
""",
    "requeue.sh": """#!/bin/bash
#SBATCH --time=12:00:00
#SBATCH --gres=gpu:4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --output=%x-%j.out
#SBATCH --signal=B:USR1@30
#SBATCH --requeue

function _requeue {
   echo "requeueing $SLURM_JOBID"
   scontrol requeue "$SLURM_JOBID"
}
if [[ -n "$SLURM_JOBID" ]]; then
   trap _requeue USR1
fi
head -n 10000 "$0" trainer.py
source setup_env.sh ""
head_node_ip=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_node_port=29507
( set -o posix ; set )
srun accelerate launch \\
  --num_processes=$((SLURM_NNODES * SLURM_GPUS_ON_NODE)) \\
  --num_machines="$SLURM_NNODES" \\
  --rdzv_backend=c10d \\
  --main_process_ip="$head_node_ip" \\
  --main_process_port="$head_node_port" \\
  --machine_rank="$SLURM_NODEID" \\
  trainer.py
""",
    "modules.sh": """#!/usr/bin/env bash
#SBATCH -A NAISS0000-0-0 -p alvis
#SBATCH -t 00:10:00
#SBATCH -N 2 --gpus-per-node=A100:4
#SBATCH -J "MWMS TensorFlow"
module purge
ml TensorFlow/2.11.0-foss-2022a-CUDA-11.7.0
srun -N $SLURM_JOB_NUM_NODES --ntasks-per-node=$SLURM_GPUS_ON_NODE python hvd.py
""",
}
EXPECTED = {
    "srun_env.sh": {("AR014", 8, "note"), ("AR204", 16, "warning")},
    "one_node_torchrun.sh": {
        ("AR201", 10, "note"), ("AR202", 12, "note"), ("AR116", 15, "note"), ("AR204", 16, "warning"),
    },
    "container.sh": {
        ("AR204", 7, "note"), ("AR116", 8, "note"), ("AR702", 1, "error"), ("AR701", 6, "warning"),
    },
    "worker_job.sh": {
        ("AR204", 15, "note"), ("AR116", 17, "note"), ("AR505", 18, "note"), ("AR401", 23, "warning"),
        ("AR117", 6, "note"), ("AR401", 14, "warning"),
    },
    "requeue.sh": {
        ("AR407", 9, "warning"), ("AR406", 13, "note"), ("AR405", 16, "warning"), ("AR204", 21, "note"),
        ("AR505", 22, "note"), ("AR116", 23, "note"), ("AR101", 29, "note"),
    },
    "modules.sh": set(),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_whole_script(name: str, tmp_path: Path) -> None:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    report = lint([tmp_path / name], Settings())
    found = {(each.rule, each.span.line, each.severity.word) for each in report.findings}
    assert found == EXPECTED[name]


GOLDEN = [
    path
    for path in sorted((Path(__file__).parents[1] / "job" / "sbatch" / "golden").glob("*.sh"))
    if path.stem != "odd.every-directive"  # its author names one log for all tasks of an array
]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_allranks_writes_itself_is_clean(path: Path) -> None:
    report = lint([path], Settings())
    assert not [each.message for each in report.findings if each.severity > NOTE]


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4\nset -e\n", "error"),
        ("set -e\n#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4\n", "warning"),
    ],
)
def test_nothing_is_sure_where_sbatch_reads_no_directive(text: str, severity: str) -> None:
    run = "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$h:29500 train.py\n"
    found = lint_text("job.sh", f"#!/bin/bash\n{text}{run}").findings
    assert [each.severity.name.lower() for each in found if each.rule == "AR102"] == [severity]


def test_a_settings_file_may_choose_the_rendezvous() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
    run = "srun accelerate launch {} --num_machines 2 --num_processes 8 --machine_rank $SLURM_PROCID train.py\n"
    for option, severity in (("", "error"), ("--config_file c.yaml", "warning")):
        found = lint_text("job.sh", head + run.format(option)).findings
        assert [each.severity.name.lower() for each in found if each.rule == "AR101"] == [severity]


def test_a_file_that_another_shell_reads_is_not_read_as_bash() -> None:
    text = "#!/opt/bin/rc\n#SBATCH -N 2\nn=`{echo $SLURM_JOB_NUM_NODES}\nsrun -n $n ./a.out\n"
    assert not [each for each in lint_text("job.sh", text).findings if each.severity != NOTE]


def test_a_command_in_place_of_a_mark_is_told() -> None:
    text = "#!/bin/bash\n#SBATCH -N 1\n!#SBATCH --time=10\nsrun python train.py\n"
    assert "AR018" in {each.rule for each in lint_text("job.sh", text).findings}


def test_the_address_of_a_first_line_is_not_replaced() -> None:
    text = "#!$HOME/bin/bash\n#SBATCH -N 1\nsrun python train.py\n"
    assert "AR004" in {each.rule for each in lint_text("job.sh", text).findings}


def test_deepspeed_without_hosts_stays_alone() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:4\n"
    for option, told in (("", True), ("--hostfile hosts ", False)):
        text = f"{head}deepspeed {option}--num_nodes=2 --num_gpus=4 train.py\n"
        assert ("AR103" in {each.rule for each in lint_text("job.sh", text).findings}) is told


def test_exit_0_hides_a_failed_training() -> None:
    text = "#!/bin/bash\n#SBATCH -N 1\nsrun python train.py\necho done\nexit 0\n"
    assert "AR403" in {each.rule for each in lint_text("job.sh", text).findings}
