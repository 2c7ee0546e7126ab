"""What each launcher says, on this machine and in a job script."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.core.shell import join
from allranks.job.defaults import derive
from allranks.job.fields import LAUNCHER_NAMES, Job
from allranks.job.launchers import LAUNCHERS, LocalNode
from allranks.job.launchers.horovodrun import rendezvous_server_lines
from allranks.job.plan import Plan

HERE = LocalNode(
    node_rank="0", address="127.0.0.1", port="2000", endpoint="127.0.0.1:2000", is_host="1", id="id"
)
RANK = "python -m allranks.runtime.agent rank"
TRAIN = "python train.py --lr 0.1"


def plan_of(launcher: str, scheduler: str = "local", **fields: Any) -> Plan:
    given = {"script": "train.py", "args": ["--lr", "0.1"], "nprocs": 2, **fields}
    return derive(Job(**given, launcher=launcher), {}, None, scheduler == "slurm")


def here(launcher: str, **fields: Any) -> str:
    """The launcher's command on this machine, on one line."""
    plan = plan_of(launcher, "local", **fields)
    return join(word for group in plan.launcher.local_words(plan, HERE) for word in group)


def in_script(launcher: str, **fields: Any) -> str:
    """The launcher's command in a job script, on one line."""
    plan = plan_of(launcher, "slurm", **fields)
    return join(word for group in plan.launcher.task_words(plan) for word in group)


LOCAL = {
    "fork": f"python -m allranks.runtime.agent ranks --nprocs 2 --nnodes 1 --node-rank 0 --mode fork --preload torch "
    f"-- {TRAIN.removeprefix('python ')}",
    "torchrun": "torchrun --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id id "
    f"--rdzv-endpoint 127.0.0.1:2000 --rdzv-conf=is_host=1 --no-python {RANK} -- {TRAIN}",
    "srun": f"python -m allranks.runtime.agent ranks --nprocs 2 --mode exec -- {TRAIN}",
    "launch": "python -m torch.distributed.launch --nnodes 1 --nproc-per-node 2 --node-rank 0 "
    "--master-addr 127.0.0.1 --master-port 2000 "
    f"--use-env --no-python {RANK} --local-rank-arg local-rank -- {TRAIN}",
    "accelerate": "accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --machine_rank 0 "
    f"--main_process_ip 127.0.0.1 --main_process_port 2000 --no_python {RANK} -- {TRAIN}",
    "deepspeed": "deepspeed --num_gpus 2 --master_addr 127.0.0.1 --master_port 2000 "
    f"--no_local_rank --no_python {RANK} -- {TRAIN}",
    "horovod": f"horovodrun --gloo -np 2 {RANK} --prefix never -- {TRAIN}",
    "mpirun": f"mpirun --map-by slot:OVERSUBSCRIBE --bind-to none -np 2 {RANK} --peers -- {TRAIN}",
    "python": f"python -m allranks.runtime.agent ranks --nprocs 1 --mode exec --plain -- {TRAIN}",
}


def test_every_name_has_a_launcher() -> None:
    assert set(LAUNCHERS) == set(LAUNCHER_NAMES) - {"auto"} == set(LOCAL)
    assert all(LAUNCHERS[name].name == name for name in LAUNCHERS)


@pytest.mark.parametrize("launcher", LOCAL)
def test_on_this_machine(launcher: str) -> None:
    assert here(launcher) == LOCAL[launcher]


@pytest.mark.parametrize(
    "launcher", sorted(set(LOCAL) - {"python", "srun", "horovod", "mpirun", "fork"})
)
def test_in_a_job_script_the_rank_is_a_variable(launcher: str) -> None:
    text = in_script(launcher, nodes=2, nprocs=4)
    assert text.endswith(f'"${{rank[@]}}" {TRAIN}')
    assert '"$MASTER_ADDR"' in text or '"$endpoint"' in text
    assert "allranks" not in text


@pytest.mark.parametrize(
    ("launcher", "end"),
    [
        ("torchrun", "train.py --lr 0.1"),
        ("launch", '--master-port "$MASTER_PORT" train.py --lr 0.1'),
        ("accelerate", "--rdzv_backend c10d train.py --lr 0.1"),
        ("deepspeed", '--master_port "$MASTER_PORT" train.py --lr 0.1'),
        ("srun", TRAIN),
        ("python", TRAIN),
    ],
)
def test_without_the_agent_the_launchers_start_the_script_themselves(
    launcher: str, end: str
) -> None:
    text = in_script(launcher, agent=False, nodes=2, nprocs=4)
    assert text.endswith(end)
    assert "rank[@]" not in text
    assert "no-python" not in text.replace("_", "-")


@pytest.mark.parametrize(
    ("launcher", "option"),
    [("torchrun", "--no-python"), ("launch", "--no-python"), ("accelerate", "--no_python")],
)
def test_a_program_is_not_handed_to_python(launcher: str, option: str) -> None:
    text = in_script(launcher, script="gmx_mpi", agent=False, nodes=2, nprocs=4)
    assert text.endswith(f"{option} gmx_mpi --lr 0.1")
    assert f" {option} " in here(launcher, script="gmx_mpi")


def test_fork_executes_a_program() -> None:
    assert "--mode exec -- gmx_mpi --lr 0.1" in here("fork", script="gmx_mpi")


def test_a_module_goes_by_its_name() -> None:
    assert in_script("srun", script="pkg.train", module=True).endswith(
        "python -m pkg.train --lr 0.1"
    )
    assert here("fork", script="pkg.train", module=True).endswith("-- -m pkg.train --lr 0.1")
    assert in_script("torchrun", script="pkg.train", module=True, agent=False).endswith(
        "-m pkg.train --lr 0.1"
    )


@pytest.mark.parametrize(
    ("launcher", "start"),
    [
        ("torchrun", "/p/python -m torch.distributed.run "),
        ("accelerate", "/p/python -m accelerate.commands.launch "),
        ("deepspeed", "/p/python -m deepspeed.launcher.runner "),
        ("launch", "/p/python -m torch.distributed.launch "),
    ],
)
def test_an_interpreter_brings_its_own_launcher(launcher: str, start: str) -> None:
    text = here(launcher, python="/p/python")
    assert text.startswith(start)
    assert text.endswith("/p/python train.py --lr 0.1")


def test_static_rendezvous() -> None:
    text = in_script("torchrun", rendezvous="static", nodes=2, nprocs=4)
    assert (
        '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"' in text
    )
    assert "rdzv" not in text
    assert "--rdzv_backend static --same_network" in in_script(
        "accelerate", rendezvous="static", nodes=2, nprocs=4
    )


def test_accelerate_alone_is_no_multi_gpu() -> None:
    assert "--multi_gpu" not in here("accelerate", nprocs=1)


def test_deepspeed_on_several_nodes_uses_no_ssh() -> None:
    text = in_script("deepspeed", nodes=2, nprocs=4)
    assert 'python -m deepspeed.launcher.launch --node_rank "$NODE_RANK" --world_info=' in text
    assert '{"node0": [0, 1], "node1": [0, 1]}' in text


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "accelerate", "deepspeed"])
def test_launchers_that_end_their_ranks_at_a_signal_start_with_signals_blocked(
    launcher: str,
) -> None:
    """In a Slurm step, where every process gets it, and only where the agent lets the ranks hear."""
    blocked = '"${rank[@]:0:3}" ${rank[0]:+block-signals --}'
    assert in_script(launcher, nodes=2, nprocs=4).startswith(blocked)
    assert "block-signals" not in in_script(launcher, nodes=2, nprocs=4, agent=False)
    assert "block-signals" not in here(launcher)


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_hydra_has_other_words(mpi: str) -> None:
    assert here("mpirun", mpi=mpi).startswith("mpirun -n 2 -ppn 2 ")
    plan = plan_of("mpirun", "slurm", mpi=mpi)
    assert LAUNCHERS["mpirun"].script_lines(plan) == ["mpirun=(mpirun -n 2 -ppn 2)"]


def test_open_mpi_carries_the_jobs_variables() -> None:
    plan = plan_of(
        "mpirun",
        "slurm",
        mpi="openmpi",
        nodes=2,
        nprocs=4,
        env={"MINE": "1"},
        framework="tensorflow",
    )
    start, names, *_ = LAUNCHERS["mpirun"].script_lines(plan)
    assert start == "mpirun=(mpirun -np 4 --map-by ppr:2:node --bind-to none)"
    assert {"PATH", "MINE", "MASTER_ADDR", "ALLRANKS_FRAMEWORK"} <= set(names.strip("; do").split())


@pytest.mark.parametrize(
    "launcher", ["torchrun", "launch", "accelerate", "deepspeed", "horovod", "mpirun", "fork"]
)
def test_further_words_stand_before_the_command(launcher: str) -> None:
    text = here(launcher, launcher_args=["--own", "a b"])
    assert text.index(" --own 'a b' ") < text.index("train.py")


def test_the_local_rank_goes_by_the_scripts_own_spelling(tmp_path: Any) -> None:
    script = tmp_path / "old.py"
    script.write_text("parser.add_argument('--local_rank')\n")
    assert "--local-rank-arg local_rank --" in here("launch", script=str(script))
    assert "--local-rank-arg local_rank --" in here("deepspeed", script=str(script))
    assert "--local-rank-arg" not in here("torchrun", script=str(script))
    assert "--local-rank-arg" not in here("deepspeed")


def test_horovods_server_is_started_by_the_jobs_interpreter() -> None:
    lines = rendezvous_server_lines(plan_of("horovod", "slurm"), "/my env/python")
    assert lines[2].startswith("  '/my env/python' -m allranks.runtime.agent horovod-server ")


@pytest.mark.parametrize(
    ("launcher", "fields", "needs"),
    [
        ("srun", {}, True),
        ("fork", {}, True),
        ("torchrun", {}, True),
        ("srun", {"mpi": "pmix"}, False),
        ("srun", {"agent": False}, False),
        ("mpirun", {}, False),
        ("python", {}, False),
    ],
)
def test_a_horovod_script_gets_its_table_by_every_launcher_that_is_not_mpi(
    launcher: str, fields: dict[str, Any], needs: bool
) -> None:
    plan = plan_of(launcher, "slurm", framework="horovod", **fields)
    assert bool(rendezvous_server_lines(plan, "python")) is needs
    assert not rendezvous_server_lines(
        plan_of(launcher, "slurm", framework="torch", **fields), "python"
    )
