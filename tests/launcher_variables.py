"""Environments as the launchers set them: dumped from real runs, then thinned out."""

import json


def batch(job="7", nodes="node[1-2]", tasks=4, per_node="2(x2)", count=2):
    """A batch script of Slurm 22.05 on the first node: task 0 of nothing, no step."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "node1",
        "SLURM_GPUS_PER_NODE": "A100:4",
    }


def step(
    rank, local, node, tasks=4, per_node="2(x2)", nodes="node[1-2]", count=2, step="0", **more
):
    """A task of srun inside that job."""
    return (
        batch()
        | {
            "SLURM_STEP_ID": step,
            "SLURM_STEPID": step,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_NUM_NODES": str(count),
            "SLURMD_NODENAME": f"node{node + 1}",
            "SLURM_TASK_PID": "15",
        }
        | more
    )


def salloc(tasks=2):
    """The shell of salloc: no task variables at all."""
    kept = ("SLURM_JOB", "SLURM_N")
    env = {k: v for k, v in batch(tasks=tasks).items() if k.startswith(kept)}
    return {k: v for k, v in env.items() if k != "SLURM_NODEID"}


def torchrun(rank=1, size=2, local=1, local_size=2, group=0, groups=1, run_id="none", **more):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(groups),
        "ROLE_RANK": str(rank),
        "TORCHELASTIC_RUN_ID": run_id,
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "40223",
    } | more


def openmpi(rank=1, size=2, local=1, local_size=2, **more):
    """Open MPI 4 and 5. NODE_RANK is the rank on the node, not the node's number."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local),
        "PMIX_RANK": str(rank),
        "PMIX_NAMESPACE": "1977024513",
    } | more


def hydra(rank=1, size=2, local=1, local_size=2, **more):
    """MPICH; Intel MPI adds its own I_MPI_ variables."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(local),
        "MPI_LOCALNRANKS": str(local_size),
        "PMI_FD": "11",
    } | more


def horovod(rank=1, size=2, local=1, local_size=2, cross=0, cross_size=1, **more):
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(local_size),
        "HOROVOD_CROSS_RANK": str(cross),
        "HOROVOD_CROSS_SIZE": str(cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.9",
    } | more


def deepspeed(rank=5, size=8, local=1, local_size=4, cross=1, cross_size=2):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_SIZE": str(local_size),
        "CROSS_RANK": str(cross),
        "CROSS_SIZE": str(cross_size),
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "29500",
    }


def contract(rank, size, local=None, local_size=None, node=None, **more):
    """RANK and the rest without any launcher's mark."""
    values = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": local_size,
        "NODE_RANK": node,
    }
    return {name: str(value) for name, value in values.items() if value is not None} | more


TF_TWO_HOSTS = json.dumps(
    {
        "cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
