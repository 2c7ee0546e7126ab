"""mpirun: Open MPI, MPICH or Intel MPI start the ranks, on this machine or across the allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.core.shell import Raw, Word, join
from allranks.errors import JobError
from allranks.job.launchers.base import SLURM_NODE, Groups, Launcher, LaunchNode, LocalNode

if TYPE_CHECKING:
    from allranks.job.fields import Job
    from allranks.job.plan import Plan

HYDRA = ("mpich", "intel")
LOCAL = ("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")
"""On this machine ranks may outnumber cores, and the agent binds them."""

EXPORTED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that Open MPI has to be asked to export to other nodes; hydra exports all."""

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


class MpirunLauncher(Launcher):
    """``mpirun -np …``, once, from the first node."""

    name = "mpirun"
    uses_srun = False
    task_per_rank = True

    def task_words(self, plan: Plan) -> Groups:
        return self._words(plan, [Raw('"${mpirun[@]}"')], SLURM_NODE)

    def local_words(self, plan: Plan, node: LocalNode) -> Groups:
        start = hydra(plan) if plan.job.mpi in HYDRA else ["mpirun", *LOCAL, "-np", _size(plan)]
        return self._words(plan, start, node)

    def _words(self, plan: Plan, start: list[Word], node: LaunchNode) -> Groups:
        options = self.agent_options(plan)
        rank = node.rank_prefix(plan, *options) if plan.agent else self.without_agent()
        return [start, list(plan.job.launcher_args), [*rank, *plan.command]]

    def check(self, job: Job) -> None:
        super().check(job)
        if job.head:
            raise JobError(
                f"--head {job.head} with --launcher mpirun: mpirun starts rank 0 on the first node.\n"
                "Leave --head out, or use --launcher srun."
            )
        if job.container and job.container_runtime == "pyxis":
            raise JobError(
                "--container-runtime pyxis with --launcher mpirun: pyxis is an option of srun.\n"
                "Use --launcher srun, or --container-runtime apptainer."
            )

    def is_mpi(self, job: Job) -> bool:
        return True

    def without_agent(self) -> list[Word]:
        return ["bash", "-c", RANK_NAMES, "rank"]

    def agent_options(self, plan: Plan) -> list[Word]:
        """hydra lets the other ranks run on when one exits with an error."""
        return ["--peers"]

    def script_lines(self, plan: Plan) -> list[str]:
        """Open MPI needs options for the placement and for each exported variable; hydra has other options."""
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
