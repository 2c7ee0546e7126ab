"""What sbatch's refusals mean and what to do. Slurm's own line is always kept beside it."""

from __future__ import annotations

REFUSALS = (
    (
        "Invalid account or account/partition combination",
        "The account is not yours, or not allowed in this partition.\n"
        "List yours: sacctmgr show assoc user=$USER format=account,partition,qos",
    ),
    (
        "Invalid partition name",
        "There is no such partition here. List them: sinfo -s",
    ),
    (
        "Invalid qos specification",
        "The QOS does not exist or is not yours.\n"
        "List yours: sacctmgr show assoc user=$USER format=account,qos",
    ),
    (
        "Job violates accounting/QOS policy",
        "The job is over a limit of your account or QOS (jobs, nodes, GPUs or time).\n"
        "See the limits: sacctmgr show qos format=name,maxwall,maxtresperuser,maxsubmitjobs",
    ),
    (
        "Requested node configuration is not available",
        "No node of the partition has what the job asks for per node: GPUs, their type, CPUs or "
        "memory.\nSee what there is: sinfo -o '%P %D %c %m %G'",
    ),
    (
        "Node count specification invalid",
        "The job asks for more nodes than the partition has. See: sinfo -s",
    ),
    (
        "Requested time limit is invalid",
        "The job asks for more time than the partition allows. See: sinfo -o '%P %l'",
    ),
    (
        "Requested partition configuration not available now",
        "The partition is closed for now, or does not allow this shape of job. See: sinfo -s",
    ),
    (
        "User's group not permitted to use this partition",
        "Your group may not use this partition. List them: sinfo -s",
    ),
    (
        "Access/permission denied",
        "Slurm does not let you do this here; the account or partition may not be yours.",
    ),
    ("Invalid generic resource (gres)", "This cluster has no such resource. See: sinfo -o '%P %G'"),
    (
        "Memory specification can not be satisfied",
        "No node has that much memory. See: sinfo -e -o '%P %m'",
    ),
    ("More processors requested than permitted", "The job asks for more CPUs than a node has."),
    ("Invalid --time specification", "Slurm cannot read the time. Write 12:00:00 or 1-00:00:00."),
    (
        "Invalid feature specification",
        "No node has such a feature (--constraint). See: sinfo -o '%P %f'",
    ),
    ("Requested reservation is invalid", "There is no such reservation, or it is not yours."),
    ("Invalid dependency", "The job named by --dependency is not known to Slurm (any more)."),
    ("Job dependency problem", "The job named by --dependency is not known to Slurm (any more)."),
    ("unrecognized option", "This cluster's sbatch does not know that option."),
    ("DOS line breaks", "The script has Windows line ends. Convert it: sed -i 's/\\r$//' FILE"),
    ("must start with #!", "The script's first line must name its shell: #!/bin/bash"),
    ("Unable to open file", "sbatch cannot read the script. Check its path."),
    ("Pathname of a file, directory", "A path in the job is too long for Slurm."),
    ("Unable to contact slurm controller", "Slurm's controller does not answer: scontrol ping"),
)
"""A part of Slurm's line → words. Looked through in order, the first that fits counts."""


def refusal_text(slurm_says: str) -> str:
    """Plain words, then Slurm's own, or only Slurm's own when the refusal is not in the table."""
    own = slurm_says.removeprefix("sbatch: ").strip()
    for part, words in REFUSALS:
        if part.lower() in own.lower():
            return f"Slurm refused the job. {words}\nSlurm says: {own}"
    return f"Slurm refused the job.\nSlurm says: {own}"
