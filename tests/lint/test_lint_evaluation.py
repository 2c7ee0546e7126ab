"""Scripts followed: which commands, in which shell, with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.lint.command_calls import BATCH, TASK, UNKNOWN, Call
from allranks.lint.job_script import JobScript
from allranks.lint.source_text import SourceFile

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4\n"


def _job(body: str, path: Path | None = None) -> JobScript:
    return JobScript(SourceFile(str(path or "job.sh"), HEAD + body, path))


def _words(call: Call) -> list[str]:
    return [word.shown for word in call.program]


@pytest.mark.parametrize(
    ("body", "program"),
    [
        ("CMD='torchrun train.py'\nsrun $CMD", ["torchrun", "train.py"]),
        ("A=(torchrun --x 1)\nsrun \"${A[@]}\" train.py", ["torchrun", "--x", "1", "train.py"]),
        ("run() { srun torchrun \"$@\"; }\nrun train.py 1", ["torchrun", "train.py", "1"]),
        ("srun bash -c 'torchrun train.py'", ["torchrun", "train.py"]),
        ("X=train.py\nsrun sh -xeuc \"torchrun $X\"", ["torchrun", "train.py"]),
        ("export X=train.py\nsrun bash -c 'torchrun $X'", ["torchrun", "train.py"]),
        ('L="torchrun  --x"\nP=train.py\nCMD="$L $P"\nsrun $CMD', ["torchrun", "--x", "train.py"]),
        ("srun bash <<EOF\ntorchrun train.py\nEOF", ["torchrun", "train.py"]),
        ("cat > w.sh <<'EOF'\ntorchrun $1\nEOF\nsrun bash w.sh train.py", ["torchrun", "train.py"]),
        ("eval \"srun torchrun train.py\"", ["torchrun", "train.py"]),
        ("srun singularity exec --nv -B /a:/b x.sif torchrun train.py", ["torchrun", "train.py"]),
        ("srun apptainer run x.sif bash -c 'torchrun train.py'", ["torchrun", "train.py"]),
        ("srun singularity exec $SIF bash -c 'torchrun train.py'", ["torchrun", "train.py"]),
        ("srun shifter --image=a torchrun train.py", ["torchrun", "train.py"]),
        ("srun --container-image a --container-mounts b:c torchrun train.py", ["torchrun", "train.py"]),
        ("srun podman run --rm -v a:b image torchrun train.py", ["torchrun", "train.py"]),
        ("time srun numactl --cpunodebind=0 env A=1 torchrun train.py", ["torchrun", "train.py"]),
        ("srun nsys profile -o x -t cuda,nvtx torchrun train.py", ["torchrun", "train.py"]),
        ("srun conda run -n e --no-capture-output torchrun train.py", ["torchrun", "train.py"]),
        ("srun uv run torchrun train.py", ["torchrun", "train.py"]),
        ("srun $(which torchrun) train.py", ["$(which torchrun)", "train.py"]),
        ("A=1 B=2 exec srun torchrun train.py", ["torchrun", "train.py"]),
        ("srun -N2 -n 2 --cpu-bind=none -l torchrun train.py", ["torchrun", "train.py"]),
        ("srun $SRUN_ARGS torchrun train.py", ["torchrun", "train.py"]),
    ],
)  # fmt: skip
def test_the_launcher_is_found_behind_anything(body: str, program: list[str]) -> None:
    job = _job(body + "\n")
    launch = job.launches[-1]
    assert launch.kind == "torchrun"
    assert launch.step is not None
    assert _words(launch.call)[: len(program)] == program


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("srun torchrun --node_rank=$SLURM_NODEID train.py", BATCH),
        ('srun bash -c "torchrun --node_rank=$SLURM_NODEID train.py"', BATCH),
        ('srun bash -c "torchrun --node_rank=\\$SLURM_NODEID train.py"', TASK),
        ("srun bash -c 'torchrun --node_rank=$SLURM_NODEID train.py'", TASK),
        ("R=$SLURM_NODEID\nsrun torchrun --node_rank=$R train.py", BATCH),
        ("export R=$SLURM_NODEID\nsrun bash -c 'torchrun --node_rank=$R train.py'", BATCH),
        ("L='torchrun --node_rank=$SLURM_NODEID'\nsrun bash -c \"$L train.py\"", TASK),
        ('L="torchrun --node_rank=\\$SLURM_NODEID"\nsrun bash -c "$L train.py"', TASK),
        ("srun bash <<EOF\ntorchrun --node_rank=$SLURM_NODEID train.py\nEOF", BATCH),
        ("srun bash <<'EOF'\ntorchrun --node_rank=$SLURM_NODEID train.py\nEOF", TASK),
    ],
)
def test_who_replaces_a_variable(body: str, kind: str) -> None:
    option = _job(body + "\n").launches[-1].options.find("node-rank")
    assert option is not None
    assert option.value is not None
    (variable,) = option.value.variables()
    assert variable.name == "SLURM_NODEID"
    assert variable.shell is not None
    assert variable.shell.kind == kind


def test_a_worker_script_is_read_with_its_arguments(tmp_path: Path) -> None:
    worker = "torchrun --nnodes=$2 --node_rank=$SLURM_NODEID --master_addr=$1 train.py\n"
    (tmp_path / "worker.sh").write_text(worker)
    job = _job("head=gpu1\nsrun bash worker.sh $head 2\n", tmp_path / "job.sh")
    launch = job.launches[-1]
    assert launch.options.text("master-addr") == "gpu1"
    assert job.processes(launch).expected_nodes == 2
    assert launch.span.source.path == tmp_path / "worker.sh"


def test_a_script_without_directives_may_be_a_worker() -> None:
    job = JobScript(SourceFile("x.sh", "torchrun --node_rank=$SLURM_NODEID train.py\n"))
    assert job.shell.kind == UNKNOWN


def test_a_branch_makes_a_value_one_of_several() -> None:
    job = _job("if [ $1 ]; then N=2; else N=4; fi\nsrun torchrun --nproc_per_node=$N train.py\n")
    option = job.launches[0].options.find("nproc-per-node")
    assert option is not None
    assert option.value is not None
    assert job.values.numbers(option.value) == {2, 4}
    assert job.values.number(option.value) is None


def test_a_command_that_is_one_of_several_is_read_in_each_way() -> None:
    body = "if [ $1 ]; then L='torchrun --x 1'; else L=python; fi\nsrun $L train.py\n"
    assert [(each.kind, each.certain) for each in _job(body).launches] == [
        ("torchrun", False),
        ("python", False),
    ]


def test_a_counter_in_a_loop_is_not_known() -> None:
    body = (
        "R=0\nfor n in a b; do\nssh $n torchrun --node_rank=$R train.py &\nR=$((R+1))\ndone\nwait\n"
    )
    option = _job(body).launches[0].options.find("node-rank")
    assert option is not None
    assert option.value is not None
    assert option.value.text is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4),
        ("$SLURM_NNODES", 2),
        ("$((SLURM_NNODES * 4))", 8),
        ("$(($SLURM_JOB_NUM_NODES*$G))", 8),
        ("$(expr $SLURM_NNODES \\* 4)", 8),
        ("$SLURM_GPUS_ON_NODE", 4),
        ("$(scontrol show hostnames | wc -l)", 2),
        ("$UNKNOWN", None),
        ("${G:-2}", 4),
        ("$((1 / 0))", None),
    ],
)
def test_numbers(text: str, number: int | None) -> None:
    job = _job(f"G=4\nsrun torchrun --nproc_per_node={text} train.py\n")
    assert job.values.number(job.launches[0].options.value("nproc-per-node")) == number
