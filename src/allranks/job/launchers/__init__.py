"""How processes start: one file per launcher."""

from __future__ import annotations

from allranks.job.launchers.accelerate_launch import Accelerate
from allranks.job.launchers.base import SLURM, Launcher, Place
from allranks.job.launchers.deepspeed_launch import DeepSpeed
from allranks.job.launchers.fork import Fork
from allranks.job.launchers.horovodrun import Horovod
from allranks.job.launchers.mpirun import Mpirun
from allranks.job.launchers.plain_python import Python
from allranks.job.launchers.srun import Srun
from allranks.job.launchers.torch_distributed_launch import TorchDistributedLaunch
from allranks.job.launchers.torchrun import Torchrun

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        Fork(),
        Torchrun(),
        Srun(),
        TorchDistributedLaunch(),
        Accelerate(),
        DeepSpeed(),
        Horovod(),
        Mpirun(),
        Python(),
    )
}

__all__ = ["LAUNCHERS", "SLURM", "Launcher", "Place"]
