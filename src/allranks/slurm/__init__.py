"""A thin client of Slurm's commands: submit, ask, cancel, requeue.

Text, not REST and not JSON: the delimited text of ``squeue`` and ``sacct`` reads the same on every
version, the JSON does not (and its exit codes are wrong on 22.05).
"""

from allranks.slurm.commands import cluster_version, run_slurm
from allranks.slurm.environment import clean_environment
from allranks.slurm.jobs import cancel, job_status, list_jobs, requeue
from allranks.slurm.parse import JobStatus
from allranks.slurm.reasons import pending_reason_text
from allranks.slurm.states import State
from allranks.slurm.submit import submit

__all__ = [
    "JobStatus",
    "State",
    "cancel",
    "clean_environment",
    "cluster_version",
    "job_status",
    "list_jobs",
    "pending_reason_text",
    "requeue",
    "run_slurm",
    "submit",
]
