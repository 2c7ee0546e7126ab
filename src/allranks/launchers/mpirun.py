"""mpirun: Open MPI, MPICH or Intel MPI start the ranks, on this machine or across the allocation."""

from __future__ import annotations

from allranks.job.plan import Plan
from allranks.launchers.base import Groups, Launcher, Place, counts
from allranks.shell import Word

EXPORTED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "ALLRANKS_RUN_DIR", "ALLRANKS_ATTEMPT_DIR", "ALLRANKS_LAUNCHER", "ALLRANKS_BIND",
)  # fmt: skip
"""What Open MPI must be told to carry to other nodes; hydra carries everything."""

# mpirun gives MPI's names for ranks; training scripts read torch's.
RANK_NAMES = (
    "export RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    " LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}"
    " NODE_RANK=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / LOCAL_WORLD_SIZE))"
    '; exec "$@"'
)


class Mpirun(Launcher):
    """``mpirun -np …``, once, from the first node."""

    name = "mpirun"
    programs = ("mpirun",)
    through_srun = False

    def words(self, plan: Plan, place: Place) -> Groups:
        rank: list[Word] = place.rank() if plan.agent else ["bash", "-c", RANK_NAMES, "rank"]
        return [
            *self._start(plan, local=bool(place.agent)),
            list(plan.job.launcher_args),
            [*rank, *plan.command],
        ]

    def _start(self, plan: Plan, local: bool) -> Groups:
        _, ranks = counts(plan)
        size = str(plan.shape.world_size)
        if (plan.job.mpi or "openmpi") != "openmpi":  # hydra: MPICH and Intel MPI
            return [["mpiexec", "-n", size, "-ppn", ranks]]
        placing = "slot:OVERSUBSCRIBE" if local else f"ppr:{ranks}:node"
        names = dict.fromkeys((*EXPORTED, *plan.job.env))
        exports: list[Word] = [] if local else [word for name in names for word in ("-x", name)]
        return [["mpirun", "-np", size, "--map-by", placing, "--bind-to", "none"], exports]
