"""``from allranks.optimize_step import optimize_step``."""

from allranks.train.step.custom_steps import optimize_step

__all__ = ["optimize_step"]
