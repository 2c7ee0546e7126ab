"""Handing a job script to sbatch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from allranks.cluster.slurm.commands import run_slurm
from allranks.cluster.slurm.sbatch_errors import refusal_text
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
    """The id of the new job.

    The environment is cleaned of an outer job's words, so submitting from inside a job works.
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
    """The id that ``--parsable`` prints: ``123`` or ``123;cluster``, after a site's banner."""
    for line in reversed(output.splitlines()):
        if match := _JOB_ID.match(line.strip()):
            return match[1]
    raise SlurmError(f"sbatch gave no job id. It printed: {output.strip() or 'nothing'}")


def _refused(message: str) -> str:
    """No answer is not a refusal: the job may exist, and submitting twice would cost twice."""
    if any(sign in message for sign in _BUSY):
        return f"{message}\nThe job may have arrived all the same. Look first: squeue -u $USER"
    return refusal_text(message)
