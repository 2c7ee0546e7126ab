"""The pictures of --explain, as they are printed."""

from __future__ import annotations

import pytest

from allranks.lint.job_explanation import explain
from allranks.lint.job_script import JobScript
from allranks.lint.source_text import SourceFile

TORCHRUN = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$head:29500 train.py
"""
TORCHRUN_PICTURE = """job.sh asks for 2 nodes, 4 a100 GPUs each, 1 task per node.

line 6: srun torchrun
  2 nodes × 1 task × torchrun 4 = 8 processes for 8 GPUs
  address: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500
    (the first node of the job, replaced once, in the batch shell)

  node 0          node 1
  torchrun        torchrun
  rank 0 1 2 3    rank 4 5 6 7"""
TWICE_PICTURE = """job.sh asks for 2 nodes, 4 a100 GPUs each, 4 tasks per node.

line 6: srun torchrun
  2 nodes × 4 tasks × torchrun 4 = 32 processes for 8 GPUs; the ranks expect 8
  address: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500
    (the first node of the job, replaced once, in the batch shell)

  node 0                            node 1
  4 × torchrun                      4 × torchrun
  rank 0 1 2 3 4 5 6 7 …            rank 16 17 18 19 20 21 22 23 …"""
SRUN = """#!/bin/bash
#SBATCH -N 1 --ntasks-per-node=2 --gpus-per-node=2 -c 8
export MASTER_ADDR=localhost MASTER_PORT=29400
srun python train.py
"""
SRUN_PICTURE = """job.sh asks for 1 node, 2 GPUs each, 2 tasks per node, 8 CPUs per task.

line 4: srun python
  1 node × 2 tasks = 2 processes for 2 GPUs
  address: MASTER_ADDR=localhost (this machine alone)
  port: MASTER_PORT=29400 (fixed in the script)

  node 0
  2 × python
  rank 0 1"""


@pytest.mark.parametrize(
    ("script", "picture"),
    [
        (TORCHRUN, TORCHRUN_PICTURE),
        (TORCHRUN.replace("ntasks-per-node=1", "ntasks-per-node=4"), TWICE_PICTURE),
        (SRUN, SRUN_PICTURE),
        ("#!/bin/bash\n#SBATCH -N 1\necho\n", "job.sh asks for 1 node, 1 task per node.\n"
         "Nothing in it starts a training that could be read."),
        ("echo\n", "job.sh has no #SBATCH lines: its size is given elsewhere.\n"
         "Nothing in it starts a training that could be read."),
    ],
)  # fmt: skip
def test_the_picture(script: str, picture: str) -> None:
    assert explain(JobScript(SourceFile("job.sh", script))) == picture


def test_it_fits_eighty_columns() -> None:
    text = explain(JobScript(SourceFile("job.sh", TORCHRUN)))
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_launcher_that_goes_to_the_other_nodes_is_drawn_on_all_of_them() -> None:
    text = "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:2\ndeepspeed --hostfile hosts --num_nodes 2 --num_gpus 2 train.py\n"
    shown = explain(JobScript(SourceFile("job.sh", text)))
    assert "2 nodes × deepspeed 2 = 4 processes for 4 GPUs" in shown
    assert "rank 0 1     rank 2 3" in shown


def test_a_list_among_the_options_of_a_container_is_no_image() -> None:
    text = '#!/bin/bash\n#SBATCH -N 1\nsrun singularity exec "${B[@]}" --bind /a:/a "$SIF" ./run.sh x\n'
    shown = explain(JobScript(SourceFile("job.sh", text)))
    assert "srun singularity run.sh" in shown


def test_one_gpu_is_one_gpu() -> None:
    shown = explain(
        JobScript(SourceFile("job.sh", "#!/bin/bash\n#SBATCH --gpus=1\nsrun python a.py\n"))
    )
    assert "1 GPU each" in shown
    assert "for 1 GPU\n" in shown


def test_the_address_of_the_first_node_is_the_first_node() -> None:
    text = """#!/bin/bash
#SBATCH -N 2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(getent hosts "$head" | awk '{ print $1 }')
srun python train.py
"""
    assert "the first node of the job" in explain(JobScript(SourceFile("job.sh", text)))
