"""The Job: what to run and on how much, from options, files and sites."""

from allranks.job.fields import Job
from allranks.job.plan import Plan, Shape

__all__ = ["Job", "Plan", "Shape"]
