"""Two words that disagree: the error names both variables, both values, and what to do."""

import pytest

from allranks.errors import WorldError
from allranks.runtime.world.detection import detect
from launcher_variables import batch, contract, horovod, hydra, openmpi, salloc, step, torchrun

ROWS = {
    "RANK exported by the batch script": (
        step(3, 1, 1, RANK="0", WORLD_SIZE="4"),
        ["RANK=0", "SLURM_PROCID=3", "remove that line", "ALLRANKS_WORLD"],
    ),
    "WORLD_SIZE of another size": (
        step(1, 1, 0, WORLD_SIZE="8"),
        ["WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=4", "start 8 processes"],
    ),
    "LOCAL_RANK expanded too early": (
        step(3, 1, 1, LOCAL_RANK="0"),
        ["LOCAL_RANK=0", "SLURM_LOCALID=1"],
    ),
    "NODE_RANK expanded too early": (
        step(3, 1, 1, NODE_RANK="0"),
        ["NODE_RANK=0", "SLURM_NODEID=1"],
    ),
    "torchrun once per GPU": (
        step(3, 1, 1) | torchrun(1, 4, 1, 2, 0, 2, run_id="7"),
        ["2 times on this node", "LOCAL_WORLD_SIZE=2", "--ntasks-per-node=1"],
    ),
    "torchrun without a meeting point": (
        step(1, 0, 1, tasks=2, per_node="1(x2)") | torchrun(),
        ["SLURM_STEP_NUM_TASKS=2", "GROUP_WORLD_SIZE=1", "--nnodes=2"],
    ),
    "torchrun --standalone on each node": (
        step(1, 0, 1, tasks=2, per_node="1(x2)")
        | torchrun(run_id="6385a537-efa8-4aee-acae-7619ab472724"),
        ["GROUP_WORLD_SIZE=1"],
    ),
    "RANK against mpirun": (
        openmpi() | {"RANK": "0"},
        ["RANK=0", "OMPI_COMM_WORLD_RANK=1"],
    ),
    "WORLD_SIZE against mpiexec": (
        hydra(WORLD_SIZE="4"),
        ["WORLD_SIZE=4", "PMI_SIZE=2"],
    ),
    "RANK against horovodrun": (horovod(RANK="0"), ["RANK=0", "HOROVOD_RANK=1"]),
    "RANK alone": ({"RANK": "1"}, ["RANK=1", "not WORLD_SIZE", "torchrun"]),
    "LOCAL_RANK alone": ({"LOCAL_RANK": "1"}, ["LOCAL_RANK=1", "not RANK and WORLD_SIZE"]),
    "srun forgotten in a batch script": (
        batch() | {"WORLD_SIZE": "4", "MASTER_ADDR": "node1"},
        ["WORLD_SIZE=4", "not RANK", "srun python"],
    ),
    "srun forgotten in salloc": (salloc() | {"WORLD_SIZE": "2"}, ["srun python"]),
    "no LOCAL_RANK": (contract(1, 4), ["RANK=1", "WORLD_SIZE=4", "Set LOCAL_RANK"]),
    "no LOCAL_WORLD_SIZE": (
        contract(1, 4, 1, MASTER_ADDR="node9"),
        ["LOCAL_WORLD_SIZE", "MASTER_ADDR=node9"],
    ),
    "rank beyond the world": (contract(4, 4, 0, 1), ["rank 4 of 4"]),
    "not a number": (contract("x", 4, 0), ["RANK=x", "not a number"]),
    "a heterogeneous step": (step(5, 1, 1), ["SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=4"]),
    "a broken node list": (step(3, 1, 1, nodes="node[1-"), ["SLURM_STEP_NODELIST=node[1-"]),
    "a broken task list": (
        step(3, 1, 1, per_node="2x2"),
        ["SLURM_STEP_TASKS_PER_NODE=2x2", "cannot be read"],
    ),
    "half a step": ({"SLURM_STEP_ID": "0"}, ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID=0"]),
    "half of MPI": (
        {"OMPI_COMM_WORLD_RANK": "0"},
        ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK=0"],
    ),
    "mpirun put rank 0 elsewhere": (
        batch() | openmpi(0, 4, 0, 2, SLURMD_NODENAME="node2"),
        ["rank 0 on node2", "is node1", "-x MASTER_ADDR=node2"],
    ),
    "TF_CONFIG that is no JSON": ({"TF_CONFIG": "{"}, ["TF_CONFIG={", "cannot be read"]),
    "TF_CONFIG of a parameter server": (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}'},
        ["'ps'", "no rank"],
    ),
    "TF_CONFIG beyond its list": (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'},
        ["worker 1"],
    ),
    "override without a size": ({"ALLRANKS_WORLD": "rank=1"}, ["lacks world_size"]),
    "override misspelt": ({"ALLRANKS_WORLD": "rnk=1"}, ["'rnk=1'", "ALLRANKS_WORLD=single"]),
    "override without numbers": ({"ALLRANKS_WORLD": "rank=a,size=2"}, ["rank=a"]),
    "a port that is none": (contract(0, 1, MASTER_PORT="99999"), ["MASTER_PORT=99999"]),
}


@pytest.mark.parametrize(("env", "words"), ROWS.values(), ids=ROWS)
def test_error_names(env, words):
    with pytest.raises(WorldError) as error:
        detect(env)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_address_is_an_error_only_when_it_is_needed():
    world = detect(openmpi(3, 4, 1, 2))
    assert world.rank == 3
    with pytest.raises(WorldError, match="-x MASTER_ADDR=HOST"):
        world.endpoint()
    with pytest.raises(WorldError, match="arbitrary"):
        detect(step(3, 1, 1, SLURM_DISTRIBUTION="arbitrary")).endpoint()
