"""mpirun: Open MPI, MPICH or Intel MPI start the ranks, on this machine or across the allocation."""

from __future__ import annotations

from allranks.core.shell import Raw, Word, join
from allranks.job.launchers.base import SLURM, Groups, Launcher, Place
from allranks.job.plan import Plan

HYDRA = ("mpich", "intel")
LOCAL = ("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")
"""On this machine ranks may outnumber cores, and the agent binds them."""

EXPORTED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""What Open MPI must be told to carry to other nodes; hydra carries everything."""

OURS = (
    "ALLRANKS_RUN_DIR", "ALLRANKS_ATTEMPT_DIR", "ALLRANKS_LAUNCHER", "ALLRANKS_BIND",
    "ALLRANKS_FRAMEWORK",
)  # fmt: skip

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
    through_srun = False

    def words(self, plan: Plan, place: Place) -> Groups:
        options = self.agent_options(plan)
        rank: list[Word] = place.rank(*options) if plan.agent else self.bare()
        start: list[Word] = [Raw('"${mpirun[@]}"')]
        if place is not SLURM:
            start = hydra(plan) if plan.job.mpi in HYDRA else ["mpirun", *LOCAL, "-np", _size(plan)]
        return [start, list(plan.job.launcher_args), [*rank, *plan.command]]

    def bare(self) -> list[Word]:
        return ["bash", "-c", RANK_NAMES, "rank"]

    def agent_options(self, plan: Plan) -> list[Word]:
        """hydra lets the other ranks run on when one exits with an error."""
        return ["--peers"]

    def script_lines(self, plan: Plan) -> list[str]:
        """Open MPI must be told how to place ranks and what to carry along; hydra has other words."""
        if plan.job.mpi in HYDRA:
            return [f"mpirun=({join(hydra(plan))})"]
        if plan.job.mpi == "openmpi":
            return open_mpi(plan)
        return [
            'if [[ $(mpirun --version) == *"Open MPI"* ]]; then',
            *(f"  {line}" for line in open_mpi(plan)),
            "else  # MPICH and Intel MPI",
            f"  mpirun=({join(hydra(plan))})",
            "fi",
        ]


def open_mpi(plan: Plan) -> list[str]:
    """Open MPI's command inside an allocation; it warns about variables that are not set."""
    placing = f"ppr:{plan.shape.ranks_per_node}:node"
    start = join(["mpirun", "-np", _size(plan), "--map-by", placing, "--bind-to", "none"])
    names = dict.fromkeys((*EXPORTED, *(OURS if plan.agent else ()), *plan.job.env))
    return [
        f"mpirun=({start})",
        f"for name in {join(names)}; do",
        '  if [[ -v $name ]]; then mpirun+=(-x "$name"); fi',
        "done",
    ]


def hydra(plan: Plan) -> list[Word]:
    """The start of MPICH's and Intel MPI's command."""
    return ["mpirun", "-n", _size(plan), "-ppn", str(plan.shape.ranks_per_node)]


def _size(plan: Plan) -> str:
    return str(plan.shape.world_size)
