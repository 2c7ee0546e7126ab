"""Plan → text of a job script."""

from allranks.job.sbatch.render import body_lines, render

__all__ = ["body_lines", "render"]
