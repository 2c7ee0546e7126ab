"""The whole zoo of variables. Each row: environment, the place it means, the launcher named."""

import pytest

from allranks.runtime.world.detection import detect
from launcher_variables import (
    TF_TWO_HOSTS,
    batch,
    contract,
    deepspeed,
    horovod,
    hydra,
    openmpi,
    salloc,
    step,
    torchrun,
)

# rank, size, local_rank, local_size, node_rank, nodes
ALONE = (0, 1, 0, 1, 0, 1)

ROWS = {
    "plain": ({}, ALONE, "plain"),
    "MASTER_ADDR alone": ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, ALONE, "plain"),
    "lone WORLD_SIZE=1": ({"WORLD_SIZE": "1"}, ALONE, "plain"),
    "accelerate, one process": ({"ACCELERATE_MIXED_PRECISION": "no"}, ALONE, "accelerate"),
    # Slurm, not started by srun
    "batch script 22.05": (batch(), ALONE, "plain"),
    "batch script 26.05": (batch() | {"SLURM_STEP_ID": "-5"}, ALONE, "plain"),
    "batch step id unsigned": (batch() | {"SLURM_STEP_ID": "4294967291"}, ALONE, "plain"),
    "interactive step of salloc": (batch() | {"SLURM_STEP_ID": "4294967290"}, ALONE, "plain"),
    "salloc": (salloc(), ALONE, "plain"),
    "srun --pty, one task": (
        step(0, 0, 0, tasks=1, per_node="1", nodes="node1", count=1, SLURM_PTY_PORT="1"),
        ALONE,
        "srun",
    ),
    # srun
    "block": (step(3, 1, 1), (3, 4, 1, 2, 1, 2), "srun"),
    "cyclic": (step(1, 0, 1, SLURM_DISTRIBUTION="cyclic"), (1, 4, 0, 2, 1, 2), "srun"),
    "uneven, long node": (step(1, 1, 0, tasks=3, per_node="2,1"), (1, 3, 1, 2, 0, 2), "srun"),
    "uneven, short node": (step(2, 0, 1, tasks=3, per_node="2,1"), (2, 3, 0, 1, 1, 2), "srun"),
    "step smaller than the job": (
        step(1, 1, 0, tasks=2, per_node="2", nodes="node1", count=1),
        (1, 2, 1, 2, 0, 1),
        "srun",
    ),
    "only SLURM_STEPID": (
        {k: v for k, v in step(3, 1, 1).items() if k != "SLURM_STEP_ID"},
        (3, 4, 1, 2, 1, 2),
        "srun",
    ),
    "srun --mpi=pmi2": (step(3, 1, 1, PMI_RANK="3", PMI_SIZE="4"), (3, 4, 1, 2, 1, 2), "srun"),
    "srun --mpi=pmix": (
        step(3, 1, 1, PMIX_RANK="3", PMIX_NAMESPACE="slurm.pmix.7.0"),
        (3, 4, 1, 2, 1, 2),
        "srun",
    ),
    "exports that agree": (
        step(3, 1, 1, WORLD_SIZE="4", MASTER_ADDR="node1", MASTER_PORT="24555"),
        (3, 4, 1, 2, 1, 2),
        "srun",
    ),
    "wrapper that sets all": (step(3, 1, 1) | contract(3, 4, 1, 2, 1), (3, 4, 1, 2, 1, 2), "srun"),
    # inner launchers
    "torchrun": (torchrun(), (1, 2, 1, 2, 0, 1), "torchrun"),
    "torchrun under srun": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | torchrun(3, 4, 1, 2, 1, 2),
        (3, 4, 1, 2, 1, 2),
        "torchrun",
    ),
    "torchrun orders nodes its own way": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | torchrun(0, 4, 0, 2, 0, 2) | {"NODE_RANK": "1"},
        (0, 4, 0, 2, 0, 2),
        "torchrun",
    ),
    "one torchrun group per task": (
        step(1, 1, 0, tasks=2, per_node="2", nodes="node1", count=1)
        | torchrun(5, 8, 1, 4, 1, 2, run_id="7"),
        (5, 8, 1, 4, 1, 2),
        "torchrun",
    ),
    "elastic job shrunk to one node": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | torchrun(1, 2, 1, 2, 0, 1, run_id="train-7"),
        (1, 2, 1, 2, 0, 1),
        "torchrun",
    ),
    "torchrun in a batch script": (batch() | torchrun(), (1, 2, 1, 2, 0, 1), "torchrun"),
    "torchrun under mpirun": (
        openmpi(1, 2, 0, 1) | torchrun(3, 4, 1, 2, 1, 2),
        (3, 4, 1, 2, 1, 2),
        "torchrun",
    ),
    "accelerate": (
        torchrun() | {"ACCELERATE_MIXED_PRECISION": "no"},
        (1, 2, 1, 2, 0, 1),
        "accelerate",
    ),
    "deepspeed": (deepspeed(), (5, 8, 1, 4, 1, 2), "deepspeed"),
    "allranks, agent per node": (
        step(1, 0, 1, tasks=2, per_node="1(x2)")
        | contract(3, 4, 1, 2, 1, ALLRANKS_LAUNCHER="fork"),
        (3, 4, 1, 2, 1, 2),
        "allranks",
    ),
    "own processes of each task": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | contract(3, 4, 1, 2, 1),
        (3, 4, 1, 2, 1, 2),
        "environment",
    ),
    # MPI
    "openmpi": (openmpi(), (1, 2, 1, 2, 0, 1), "openmpi"),
    "openmpi 5": (openmpi(PRTE_LAUNCHED="1", OMPI_WORLD_SIZE="2"), (1, 2, 1, 2, 0, 1), "openmpi"),
    "openmpi, daemon by srun": (
        step(0, 0, 0, tasks=1, per_node="1", nodes="node2", count=1)
        | openmpi(2, 4, 0, 2, SLURMD_NODENAME="node2", OMPI_MCA_orte_num_nodes="2"),
        (2, 4, 0, 2, 1, 2),
        "openmpi",
    ),
    "openmpi --map-by node": (
        batch() | openmpi(1, 4, 0, 2, SLURMD_NODENAME="node2"),
        (1, 4, 0, 2, 1, 2),
        "openmpi",
    ),
    "openmpi in a batch script": (batch() | openmpi(1, 4, 1, 2), (1, 4, 1, 2, 0, 2), "openmpi"),
    "openmpi without Slurm": (
        openmpi(5, 8, 1, 4, MASTER_ADDR="a"),
        (5, 8, 1, 4, 1, 2),
        "openmpi",
    ),
    "openmpi, wrapper sets RANK": (
        openmpi() | contract(1, 2, 1),
        (1, 2, 1, 2, 0, 1),
        "openmpi",
    ),
    "mpich": (hydra(), (1, 2, 1, 2, 0, 1), "mpich"),
    "mpich, proxy by srun": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | hydra(2, 4, 0, 2),
        (2, 4, 0, 2, 1, 2),
        "mpich",
    ),
    "intel": (hydra(I_MPI_HYDRA_UUID="1f"), (1, 2, 1, 2, 0, 1), "intel-mpi"),
    "intel module loaded, srun": (
        step(3, 1, 1, I_MPI_ROOT="/opt"),
        (3, 4, 1, 2, 1, 2),
        "srun",
    ),
    # frameworks
    "horovod": (horovod(), (1, 2, 1, 2, 0, 1), "horovod"),
    "horovod, two nodes": (horovod(3, 4, 1, 2, 1, 2), (3, 4, 1, 2, 1, 2), "horovod"),
    "TF_CONFIG": ({"TF_CONFIG": TF_TWO_HOSTS}, (2, 3, 0, 1, 1, 2), "tensorflow"),
    "TF_CONFIG without a cluster": ({"TF_CONFIG": '{"environment": "x"}'}, ALONE, "plain"),
    # the variables alone
    "contract": (contract(3, 4, 1, 2, 1), (3, 4, 1, 2, 1, 2), "environment"),
    "contract on loopback": (
        contract(1, 2, 1, MASTER_ADDR="127.0.0.1"),
        (1, 2, 1, 2, 0, 1),
        "environment",
    ),
    "contract of one": (contract(0, 1), ALONE, "environment"),
    "a pod": (contract(2, 4, KUBERNETES_SERVICE_HOST="10.0.0.1"), (2, 4, 0, 1, 2, 4), "kubernetes"),
    # override
    "single": (step(3, 1, 1, ALLRANKS_WORLD="single"), ALONE, "override"),
    "override": (
        torchrun() | {"ALLRANKS_WORLD": "rank=5,world_size=8,local_size=4,master_addr=::1"},
        (5, 8, 1, 4, 1, 2),
        "override",
    ),
    "override, one node": (
        {"ALLRANKS_WORLD": "rank=1, world_size=4, local_rank=1"},
        (1, 4, 1, 4, 0, 1),
        "override",
    ),
    "override, nodes": (
        {"ALLRANKS_WORLD": "rank=3,size=4,nodes=2"},
        (3, 4, 1, 2, 1, 2),
        "override",
    ),
}


@pytest.mark.parametrize(("env", "place", "launcher"), ROWS.values(), ids=ROWS)
def test_zoo(env, place, launcher):
    found = detect(env)
    shown = (
        found.rank,
        found.size,
        found.local_rank,
        found.local_size,
        found.node_rank,
        found.nodes,
    )
    assert (shown, found.launcher) == (place, launcher)
    assert found.reason.startswith(launcher)


def test_the_reason_says_why():
    assert detect(step(3, 1, 1)).reason == "srun (SLURM_STEP_ID=0, task 3 of 4)"
    assert "not started by srun" in detect(batch()).reason
    assert "asks for 4 tasks" in detect(batch()).reason
    assert detect({"ALLRANKS_WORLD": "single"}).reason == "override (ALLRANKS_WORLD=single)"


@pytest.mark.parametrize(
    ("env", "address"),
    [
        ({}, "127.0.0.1"),
        (step(3, 1, 1), "node1"),
        (step(1, 0, 1, nodes="node[3,5]"), "node3"),
        (step(3, 1, 1, MASTER_ADDR="head-ib"), "head-ib"),
        (step(1, 1, 0, tasks=2, per_node="2", nodes="node1", count=1), "127.0.0.1"),
        (step(3, 1, 1, SLURM_DISTRIBUTION="arbitrary"), None),
        (step(3, 1, 1, SLURM_DISTRIBUTION="arbitrary", SLURM_ARBITRARY_NODELIST="n9,n1"), "n9"),
        (batch() | openmpi(3, 4, 1, 2, SLURMD_NODENAME="node2"), "node1"),
        (openmpi(3, 4, 1, 2), None),
        (openmpi(), "127.0.0.1"),
        (horovod(3, 4, 1, 2, 1, 2), None),
        ({"TF_CONFIG": TF_TWO_HOSTS}, "a"),
        ({"ALLRANKS_WORLD": "rank=1,size=2,master_addr=h", "MASTER_ADDR": "x"}, "h"),
    ],
)
def test_address(env, address):
    assert detect(env).master_addr == address


def test_port_is_derived_alike_on_all_ranks_and_differs_between_steps():
    ports = {detect(step(rank, rank % 2, rank // 2)).master_port for rank in range(4)}
    assert len(ports) == 1
    other = detect(step(0, 0, 0, step="1"))
    assert other.master_port not in ports
    assert 20000 <= other.master_port <= 32767
    assert not other.port_is_given
    requeued = detect(step(0, 0, 0, SLURM_RESTART_COUNT="1"))
    assert requeued.master_port not in ports
    assert detect(torchrun()).port_is_given


def test_a_derived_port_handed_on_by_an_agent_is_still_untried():
    env = step(3, 1, 1)
    world = detect(env)
    again = detect(env | world.environment() | {"ALLRANKS_LAUNCHER": "srun"})
    assert again.master_port == world.master_port
    assert not again.port_is_given
    assert detect(env | {"MASTER_PORT": "29500"}).port_is_given


def test_open_mpi_ranks_agree_though_only_some_daemons_are_steps():
    first = detect(batch() | openmpi(0, 4, 0, 2))
    second = detect(
        step(0, 0, 1, tasks=1, per_node="1", count=1, nodes="node2") | openmpi(2, 4, 0, 2)
    )
    assert first.master_port == second.master_port


@pytest.mark.parametrize(
    ("env", "index"),
    [
        ({}, 0),
        (step(3, 1, 1), 1),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="0,1"), 1),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="1"), 0),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="2,3", SLURMD_TRES_BIND="gres/gpu:per_task:2"), 0),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="2,3", SLURM_GPUS_PER_TASK="2"), 0),
        (step(3, 1, 1, ROCR_VISIBLE_DEVICES="0"), 0),
        (step(3, 1, 1, HIP_VISIBLE_DEVICES="0,1"), 1),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="MIG-1a2b,MIG-3c4d"), 1),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES=""), None),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="-1"), None),
        (step(3, 1, 1, CUDA_VISIBLE_DEVICES="NoDevFiles"), None),
    ],
)
def test_device_index(env, index):
    assert detect(env).device_index == index


def test_environment_is_the_contract_and_reads_back():
    world = detect(step(3, 1, 1))
    assert world.environment() == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "node1",
        "MASTER_PORT": str(world.master_port),
    }
    again = detect(world.environment())
    assert again.environment() == world.environment()
    assert not world.is_main
    assert "MASTER_ADDR" not in detect(openmpi(3, 4, 1, 2)).environment()
