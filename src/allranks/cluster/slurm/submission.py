"""Submit a job script by sbatch, and explain why it was refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from allranks.cluster.slurm.commands import run_slurm
from allranks.cluster.slurm.submit_environment import clean_environment
from allranks.errors import SlurmError

_JOB_ID = re.compile(r"^(\d+)(?:;(\S+))?$")
_BUSY = ("did not answer", "does not answer")


def submit(
    script_path: str | os.PathLike[str],
    *,
    options: Sequence[str] = (),
    script_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 60,
) -> str:
    """Submit a script and return the id of the new job.

    The environment is cleaned of an outer job's variables, so submitting from inside a job works.
    Never repeated by itself: a submission that timed out may have arrived.
    """
    environment = clean_environment(os.environ if env is None else env)
    command = ["sbatch", "--parsable", *options, os.fspath(script_path), *script_args]
    try:
        output = run_slurm(command, timeout, environment, cwd)
    except SlurmError as error:
        raise SlurmError(_refused(str(error))) from error
    return read_job_id(output)


def read_job_id(output: str) -> str:
    """Return the id that ``--parsable`` prints: ``123`` or ``123;cluster``, after a site's banner."""
    for line in reversed(output.splitlines()):
        if match := _JOB_ID.match(line.strip()):
            return match[1]
    raise SlurmError(f"sbatch gave no job id. It printed: {output.strip() or 'nothing'}")


def _refused(message: str) -> str:
    """Return the error of a submission. Without an answer the job may exist: it is not submitted twice."""
    if any(sign in message for sign in _BUSY):
        return f"{message}\nThe job may have arrived all the same. Look first: squeue -u $USER"
    return explain_refusal(message)


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
"""A part of Slurm's error line, and its explanation. The first that matches is used."""


def explain_refusal(message: str) -> str:
    """Return an explanation and Slurm's own line; only the line when the error is not in the table."""
    own = message.removeprefix("sbatch: ").strip()
    for part, words in REFUSALS:
        if part.lower() in own.lower():
            return f"Slurm refused the job. {words}\nSlurm: {own}"
    return f"Slurm refused the job.\nSlurm: {own}"
