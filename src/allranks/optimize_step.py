"""``from allranks.optimize_step import optimize_step``."""

from allranks.train.gradient_step import optimize_step

__all__ = ["optimize_step"]
