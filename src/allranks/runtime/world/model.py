"""What one process knows of the job: its rank, rank 0's address, and the reason for both."""

from __future__ import annotations

from dataclasses import dataclass

from allranks.errors import WorldError


@dataclass(frozen=True)
class DetectedRank:
    """The rank that one launcher's variables describe: a `World` without address, port and host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    launcher: str
    reason: str
    master_addr: str | None = None
    master_port: int | None = None
    rank_name: str = "RANK"
    """The variable the rank was read from, to be named when another one disagrees."""
    size_name: str = "WORLD_SIZE"

    def __post_init__(self) -> None:
        _in_range(self.launcher, "rank", self.rank, self.size)
        _in_range(self.launcher, "local rank", self.local_rank, self.local_size)
        _in_range(self.launcher, "node", self.node_rank, self.nodes)
        if self.local_size > self.size:
            raise WorldError(
                f"{self.launcher}: {self.local_size} processes here, but {self.size} in total."
            )


@dataclass(frozen=True)
class World:
    """The world as this process sees it."""

    rank: int
    """The number of this process among all, from 0."""
    size: int
    """The number of processes."""
    local_rank: int
    """The number of this process among those on its node, from 0."""
    local_size: int
    """Processes on this node; nodes may differ."""
    node_rank: int
    """The number of this node among all, from 0."""
    nodes: int
    """The number of nodes."""
    master_addr: str | None
    """Where rank 0 listens; None where it is unknown (MPI over several nodes without Slurm)."""
    master_port: int | None
    host: str
    """This node's name: Slurm's where Slurm runs the job, else the machine's."""
    launcher: str
    """plain, srun, torchrun, accelerate, deepspeed, openmpi, mpich, intel-mpi, horovod, tensorflow,
    allranks, kubernetes, environment (the variables alone), override."""
    reason: str
    """``srun (SLURM_STEP_ID=0, task 3 of 8)``."""
    visible_devices: tuple[str, ...] | None = None
    """The GPUs CUDA_VISIBLE_DEVICES (or ROCR_, HIP_) lists; None when no such variable is set."""
    private_devices: bool = False
    """The visible GPUs are this task's alone (``--gpus-per-task``)."""
    port_is_given: bool = True
    """False when the port was only derived, so `init` has to find a free one."""

    @property
    def is_main(self) -> bool:
        """True on rank 0 only."""
        return self.rank == 0

    @property
    def device_index(self) -> int | None:
        """The index for ``torch.cuda.set_device``; None when no GPU is visible.

        Under ``--gpus-per-task`` each task sees its own GPU as number 0, so the local rank would
        be an invalid ordinal there.
        """
        if self.visible_devices is None:
            return self.local_rank
        if not self.visible_devices:
            return None
        return 0 if self.private_devices else self.local_rank % len(self.visible_devices)

    def environment(self) -> dict[str, str]:
        """Return RANK, WORLD_SIZE and the rest; address and port only where they are known."""
        values: dict[str, object] = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "NODE_RANK": self.node_rank,
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def endpoint(self) -> tuple[str, int]:
        """Return rank 0's address and port; an error explains how to set them."""
        if self.master_addr is None or self.master_port is None:
            raise WorldError(
                f"{self.launcher} does not report on which host rank 0 of {self.size} runs.\n"
                f"Set MASTER_ADDR to that host for every process: {self._how_to_set()}."
            )
        return self.master_addr, self.master_port

    def _how_to_set(self) -> str:
        by_launcher = {
            "openmpi": "mpirun -x MASTER_ADDR=HOST …",
            "mpich": "mpiexec -genv MASTER_ADDR HOST …",
            "intel-mpi": "mpiexec -genv MASTER_ADDR HOST …",
            "horovod": "MASTER_ADDR=HOST horovodrun …",
            "srun": "export MASTER_ADDR=HOST before srun (--distribution=arbitrary hides it)",
        }
        return by_launcher.get(self.launcher, "export MASTER_ADDR=HOST")


def _in_range(launcher: str, what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise WorldError(
            f"{launcher}: {what} {index} of {count} is not possible; it must lie between 0 and "
            f"{count - 1}."
        )
