"""Why a job is pending, as a sentence for each of Slurm's reason codes."""

from __future__ import annotations

import re

REASONS = {
    "Resources": "it is next; waiting for nodes to become free",
    "Priority": "jobs with a higher priority are ahead of it",
    "None": "the scheduler has not looked at it yet",
    "Dependency": "it waits for another job (--dependency)",
    "DependencyNeverSatisfied": "the job it waits for can no longer end as asked; cancel it",
    "BeginTime": "its begin time is not reached; after a requeue Slurm also waits a while",
    "JobHeldUser": "held by its user; release it with: scontrol release JOBID",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "requeued too often, so Slurm holds it; scontrol release JOBID",
    "JobArrayTaskLimit": "the array's own limit of tasks at once (--array=…%N)",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved (often for maintenance)",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation was deleted",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
    "AccountNotAllowed": "the account may not use this partition",
    "QOSNotAllowed": "the QOS may not be used in this partition",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionNodeLimit": "it asks for more nodes than the partition has up or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionConfig": "the partition does not allow what it asks for",
    "Licenses": "waiting for a licence",
    "NodeDown": "a node it needs is down",
    "BadConstraints": "no node can ever satisfy what it asks for",
    "AssociationJobLimit": "your limit of jobs is reached",
    "AssociationResourceLimit": "your limit of resources is reached",
    "AssociationTimeLimit": "your limit of time is reached",
    "AssocGrpCpuLimit": "your group's limit of CPUs is reached",
    "AssocGrpGRES": "your group's limit of GPUs is reached",
    "AssocGrpGRESMinutes": "your group's GPU time is used up",
    "AssocGrpCPUMinutesLimit": "your group's CPU time is used up",
    "AssocGrpBillingMinutes": "your group's compute budget is used up",
    "AssocGrpMemLimit": "your group's limit of memory is reached",
    "AssocGrpNodeLimit": "your group's limit of nodes is reached",
    "AssocGrpJobsLimit": "your group's limit of running jobs is reached",
    "AssocMaxJobsLimit": "your limit of running jobs is reached",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than your account allows one job",
    "AssocMaxGRESPerJob": "it asks for more GPUs than your account allows one job",
    "QOSJobLimit": "the QOS's limit of jobs is reached",
    "QOSResourceLimit": "the QOS's limit of resources is reached",
    "QOSTimeLimit": "the QOS's limit of time is reached",
    "QOSGrpCpuLimit": "all CPUs of the QOS are in use",
    "QOSGrpGRES": "all GPUs of the QOS are in use",
    "QOSGrpNodeLimit": "all nodes of the QOS are in use",
    "QOSGrpJobsLimit": "the QOS runs as many jobs as it may",
    "QOSMaxCpuPerUserLimit": "you use as many CPUs as the QOS allows one user",
    "QOSMaxGRESPerUser": "you use as many GPUs as the QOS allows one user",
    "QOSMaxNodePerUserLimit": "you use as many nodes as the QOS allows one user",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as the QOS allows one user",
    "QOSMaxGRESPerJob": "it asks for more GPUs than the QOS allows one job",
    "QOSMaxNodePerJobLimit": "it asks for more nodes than the QOS allows one job",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the QOS allows one job",
    "QOSMinGRES": "it asks for fewer GPUs than the QOS wants",
    "QOSUsageThreshold": "your share of the QOS is used up for now",
    "MaxCpuPerAccount": "your account uses as many CPUs as it may",
    "MaxGRESPerAccount": "your account uses as many GPUs as it may",
    "MaxMemPerLimit": "it asks for more memory than allowed",
    "DeadLine": "it cannot end before its deadline",
    "Cleaning": "its last attempt is still being cleaned up",
    "Prolog": "the nodes are being prepared (prolog)",
    "JobLaunchFailure": "it could not be started on its nodes; ask the cluster's staff",
    "launch failed requeued held": "it could not be started, so it is held; see scontrol release",
    "Nodes required for job are DOWN": "its nodes are down, drained or taken by higher partitions",
    "FedJobLock": "another cluster of the federation is deciding",
    "BurstBufferResources": "waiting for burst-buffer space",
}

_LIMIT = re.compile(r"^(Assoc|QOS|Max)\w*(Limit|GRES|Minutes|Unknown|PerUser|PerJob|PerAccount)")
_HELD = re.compile(r"\bheld\b", re.IGNORECASE)


def pending_reason_text(reason: str) -> str:
    """Return a reason as a sentence, with what Slurm adds to it (``ReqNodeNotAvail, UnavailableNodes:n3``)."""
    spoken = reason.strip().strip("()").replace("_", " ") or "None"
    word, _, detail = (part.strip() for part in spoken.partition(","))
    text = REASONS.get(spoken) or REASONS.get(word)
    if text is None and _LIMIT.match(word):
        text = "a limit of your account or QOS is reached"
    if text is None and _HELD.search(spoken):
        text = "it is held; release it with: scontrol release JOBID"
    if text is None:
        return spoken
    note = detail.replace("UnavailableNodes:", "unavailable: ")
    return f"{text} ({note})" if note and not word.startswith("Nodes required") else text
