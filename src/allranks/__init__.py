"""allranks: a training script from a laptop to many GPUs and many Slurm nodes."""

from allranks._version import __version__

__all__ = ["__version__"]
