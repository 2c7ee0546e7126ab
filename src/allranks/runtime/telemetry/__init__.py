"""What a node does while ranks train: GPUs, CPUs, memory, network and disk. Standard library only."""

from __future__ import annotations

SAMPLED = "ALLRANKS_SAMPLED"
"""Set for ranks whose agent samples the node, so that they need not."""


def switched_off(text: str) -> bool:
    """Whether the value of a variable such as ALLRANKS_SAMPLE says no."""
    return text.strip().lower() in ("off", "0", "no", "false")
