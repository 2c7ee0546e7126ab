"""A real Slurm cluster on this machine, from the distribution's packages.

    with Sandbox.up(config=SandboxConfig(nodes=4)) as sandbox:
        sandbox.run("srun", "-N4", "hostname")

Needs no root, touches nothing in /etc, and leaves nothing behind.
"""

from allranks.cluster.sandbox.sandbox_cluster import Sandbox, list_sandboxes
from allranks.cluster.sandbox.sandbox_config import SandboxConfig
from allranks.cluster.sandbox.sandbox_status import NodeStatus, SandboxJob, SandboxStatus

__all__ = [
    "NodeStatus",
    "Sandbox",
    "SandboxConfig",
    "SandboxJob",
    "SandboxStatus",
    "list_sandboxes",
]
