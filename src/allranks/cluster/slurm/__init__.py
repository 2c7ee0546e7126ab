"""A thin client of Slurm's commands: submit, ask, cancel, requeue.

Text, not REST and not JSON: the delimited text of ``squeue`` and ``sacct`` reads the same on every
version, the JSON does not (and its exit codes are wrong on 22.05).
"""

from allranks.cluster.slurm.commands import cluster_version, run_slurm
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.jobs import cancel, job_status, list_jobs, requeue
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.cluster.slurm.submission import submit
from allranks.cluster.slurm.submit_environment import clean_environment

__all__ = [
    "JobState",
    "JobStatus",
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
