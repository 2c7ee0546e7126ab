"""A job script becomes a job file, and the job that comes out of it has the same ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from allranks.cli.convert import convert as command
from allranks.errors import UsageError
from allranks.job.resolve import resolve
from allranks.lint.conversion import convert, main_launch, to_toml
from allranks.lint.job_script import JobScript
from allranks.lint.source_text import SourceFile

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=8\n#SBATCH --time=02:00:00\n"
ONE = HEAD + "#SBATCH --ntasks-per-node=1\n"
FOUR = HEAD + "#SBATCH --ntasks-per-node=4\n"
MEET = "--rdzv_backend=c10d --rdzv_endpoint=$H:29500"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALLRANKS_SITE", "")
    (tmp_path / "train.py").write_text("import torch\n")


def _job(text: str) -> JobScript:
    return JobScript(SourceFile("job.sh", text))


@pytest.mark.parametrize(
    ("script", "launcher", "ranks"),
    [
        (ONE + f"srun torchrun --nnodes=2 --nproc_per_node=4 {MEET} train.py --lr 0.1\n", "torchrun", 8),
        (FOUR + "srun python train.py --lr 0.1\n", "srun", 8),
        (FOUR + f"srun torchrun --nnodes=2 --nproc_per_node=4 {MEET} train.py\n", "torchrun", 8),
        (
            ONE + "srun bash -c 'python -m torch.distributed.launch --nnodes=2 --nproc_per_node=4 "
            "--node_rank=$SLURM_NODEID --master_addr=$H train.py'\n",
            "launch",
            8,
        ),
        (
            ONE + "srun accelerate launch --num_machines=2 --num_processes=8 --mixed_precision=bf16 train.py\n",
            "accelerate",
            8,
        ),
        (FOUR + "mpirun -np 8 python train.py\n", "mpirun", 8),
    ],
)  # fmt: skip
def test_the_same_ranks_come_out(script: str, launcher: str, ranks: int, tmp_path: Path) -> None:
    job = _job(script)
    found = convert(job)
    (tmp_path / "allranks.toml").write_text(to_toml(job, found))
    plan = resolve({}, config=str(tmp_path / "allranks.toml"))
    assert plan.launcher.name == launcher
    assert plan.shape.world_size == ranks
    assert plan.shape.nodes == 2
    assert plan.job.script == "train.py"
    assert plan.job.time == 7200


def test_the_environment_is_carried_over() -> None:
    job = _job(
        ONE + "#SBATCH --licenses=a\n#SBATCH --requeue\nmodule purge\nmodule load cuda/12 gcc\n"
        "source ~/mini/etc/profile.d/conda.sh\nconda activate torch\nexport NCCL_DEBUG=INFO\n"
        "export DATA=$SCRATCH/data\nexport MASTER_PORT=29500\nulimit -n 4096\ncp data.tar $TMPDIR\n"
        f"srun apptainer exec --nv -B /a:/b,/c x.sif torchrun --nnodes=2 --nproc_per_node=4 {MEET} "
        "--max_restarts=0 -m pkg.train --epochs $SLURM_NNODES --data $DATA\n"
    )
    found = convert(job)
    assert found.values == {
        "script": "pkg.train",
        "module": True,
        "args": ["--epochs", "2", "--data"],
        "launcher": "torchrun",
        "launcher_args": ["--max_restarts=0"],
        "nodes": 2,
        "gpus_per_node": 4,
        "nprocs": 8,
        "cpus_per_task": 8,
        "time": "02:00:00",
        "requeue": True,
        "sbatch": {"licenses": "a"},
        "container": "x.sif",
        "container_runtime": "apptainer",
        "binds": ["/a:/b", "/c"],
        "module_purge": True,
        "modules": ["cuda/12", "gcc"],
        "conda_root": "~/mini",
        "conda": "torch",
        "env": {"NCCL_DEBUG": "INFO"},
        "setup_commands": ["export DATA=$SCRATCH/data", "ulimit -n 4096"],
    }
    assert [(text, why) for _, text, why in found.left] == [
        ("$SCRATCH/data", "an argument with a variable: write its value"),
        ("cp data.tar $TMPDIR", "a command of its own"),
    ]


def test_the_training_is_chosen_among_several_launches() -> None:
    job = _job(
        ONE + f"python prepare.py\nsrun torchrun --nnodes=2 {MEET} train.py\npython plot.py\n"
    )
    launch = main_launch(job)
    assert launch is not None
    assert launch.kind == "torchrun"


def test_the_command_writes_a_file_and_lists_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(FOUR + "tar xf data.tar\nsrun python train.py\n")
    done = CliRunner().invoke(command, ["job.sh", "-o", "allranks.toml"], standalone_mode=False)
    assert "job.sh:7: not carried over: tar xf data.tar (a command of its own)" in done.output
    text = (tmp_path / "allranks.toml").read_text()
    assert 'launcher = "srun"' in text
    assert "#   line 7: tar xf data.tar" in text
    again = CliRunner().invoke(command, ["job.sh", "-o", "allranks.toml"], standalone_mode=False)
    assert isinstance(again.exception, UsageError)


def test_a_script_without_a_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nothing in"):
        convert(_job(ONE + "echo hello\n"))
