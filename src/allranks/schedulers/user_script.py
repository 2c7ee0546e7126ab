"""A job script of the user: submitted as it is, with a run folder so that the commands find it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.commands import query
from allranks.cluster.slurm.submission import submit
from allranks.core.units import format_time
from allranks.errors import AllranksError, UsageError
from allranks.job.fields import flag, options
from allranks.runs.run_folder import Run
from allranks.runs.run_lookup import runs_root
from allranks.schedulers.base import StartedRun
from allranks.schedulers.slurm import SlurmScheduler

SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".job")
_WITH_DIRECTIVE = {"nodes": "nodes", "time": "time", "output": "output"}
_OURS = ("runs",)


def is_job_script(word: str) -> bool:
    """Return whether a file is a job script already, and not a program to write one for."""
    path = Path(word)
    if not (word.endswith(SUFFIXES) and path.is_file()):
        return False
    return "#SBATCH" in path.read_text("utf-8", "replace")


def sbatch_options(values: Mapping[str, Any]) -> list[str]:
    """Return options of the job as sbatch takes them: they win over the script's directives."""
    words = []
    for name, value in values.items():
        if name in ("script", "args", *_OURS):
            continue
        directive = options()[name].directive or _WITH_DIRECTIVE.get(name)
        if directive is None:
            raise UsageError(
                f"{flag(name)} cannot be added to a job script of your own: what it starts is written there.\n"
                "Change the script, or turn it into a job: allranks convert SCRIPT"
            )
        text = format_time(_seconds(value)) if name == "time" else str(value)
        words.append(f"--{directive}={text}")
    return words


def submit_job_script(script: Path, args: Sequence[str], values: Mapping[str, Any]) -> StartedRun:
    """Keep a copy of the script in a new run folder and submit that copy from here."""
    words = sbatch_options(values)
    root = Path(values["runs"]).absolute() if values.get("runs") else runs_root()
    name = str(values.get("name") or script.stem)
    command = ["allranks", *sys.argv[1:]]
    run = Run.create(root, name, scheduler=SlurmScheduler.name, cwd=Path.cwd(), command=command)
    kept = run.path / "job.sh"
    shutil.copy2(script, kept)
    if not _names_its_log(script, words):
        words.append(f"--output={str(run.path).replace('%', '%%')}/slurm-%j.out")
    if "name" not in values and not _has_directive(script, "job-name", "J"):
        words.append(f"--job-name={script.name}")  # the copy's own would say job.sh
    job_id = submit(kept, options=words, script_args=args, cwd=Path.cwd(), env=os.environ)
    _link_log(run, job_id)
    return StartedRun(run.add_job_id(job_id), job_id)


def _seconds(value: Any) -> int:
    from allranks.core.units import parse_time

    return value if isinstance(value, int) else parse_time(str(value))


def _names_its_log(script: Path, words: Sequence[str]) -> bool:
    return any(word.startswith("--output=") for word in words) or _has_directive(
        script, "output", "o"
    )


def _has_directive(script: Path, name: str, short: str) -> bool:
    """Return whether a line of directives gives an option; sbatch reads them by their beginning too."""
    for line in script.read_text("utf-8", "replace").splitlines():
        words = line.removeprefix("#SBATCH").split() if line.startswith("#SBATCH") else []
        if any(word.partition("=")[0] == f"--{name}" or word[:2] == f"-{short}" for word in words):
            return True
    return False


def _link_log(run: Run, job_id: str) -> None:
    """Link the file that Slurm writes under the name that ``allranks logs`` looks for."""
    link = run.path / f"slurm-{job_id}.out"
    try:
        facts = query(["scontrol", "show", "job", "-o", job_id])
    except AllranksError:
        return  # the job is in the queue all the same; its own log is where the script says
    found = next((w.partition("=")[2] for w in facts.split() if w.startswith("StdOut=")), "")
    if found and Path(found) != link and not found.startswith("/dev/"):
        link.symlink_to(found)
