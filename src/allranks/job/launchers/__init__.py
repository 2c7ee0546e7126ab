"""How processes start: one class per launcher, and the table of all."""

from __future__ import annotations

from allranks.job.launchers.accelerate_launch import AccelerateLauncher
from allranks.job.launchers.base import Launcher, LocalNode
from allranks.job.launchers.deepspeed_launch import DeepSpeedLauncher
from allranks.job.launchers.fork import ForkLauncher
from allranks.job.launchers.horovodrun import HorovodLauncher
from allranks.job.launchers.mpirun import MpirunLauncher
from allranks.job.launchers.plain_python import PythonLauncher
from allranks.job.launchers.srun import SrunLauncher
from allranks.job.launchers.torch_distributed_launch import TorchDistributedLauncher
from allranks.job.launchers.torchrun import TorchrunLauncher

LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for launcher in (
        ForkLauncher(),
        TorchrunLauncher(),
        SrunLauncher(),
        TorchDistributedLauncher(),
        AccelerateLauncher(),
        DeepSpeedLauncher(),
        HorovodLauncher(),
        MpirunLauncher(),
        PythonLauncher(),
    )
}

__all__ = ["LAUNCHERS", "Launcher", "LocalNode"]
