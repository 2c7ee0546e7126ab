"""The Job: what to run and on how much, from options, files and sites."""

from allranks.job.fields import Job
from allranks.job.plan import JobShape, Plan

__all__ = ["Job", "JobShape", "Plan"]
