"""How processes start: one file per launcher."""

from __future__ import annotations

from allranks.launchers.accelerate import Accelerate
from allranks.launchers.base import SLURM, Launcher, Place
from allranks.launchers.deepspeed import DeepSpeed
from allranks.launchers.fork import Fork
from allranks.launchers.horovod import Horovod
from allranks.launchers.launch import TorchDistributedLaunch
from allranks.launchers.mpirun import Mpirun
from allranks.launchers.python import Python
from allranks.launchers.srun import Srun
from allranks.launchers.torchrun import Torchrun

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
