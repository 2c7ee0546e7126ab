"""Submit the script of a run again into the same folder, with other limits where they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping

from allranks.cluster.slurm.submission import submit
from allranks.core.units import format_time
from allranks.errors import UsageError
from allranks.runs.atomic_files import write_text
from allranks.runs.run_folder import Run
from allranks.runtime.agent.attempt_end import CANCELLED_FILE
from allranks.runtime.agent.attempt_start import EXCLUDED

_POLICY = re.compile(r"^( *policy=\()(.*)(\))$", re.MULTILINE)
_TIME = re.compile(r"^#SBATCH --time=.*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH .*$", re.MULTILINE)
_MOST = re.compile(r"--max-attempts=(\d+)")


def resubmit(run: Run, changes: Mapping[str, int | None]) -> str:
    """Submit the run's script once more; return the id of the job."""
    script = run.path / "job.sh"
    if not script.is_file():
        raise UsageError(f"{run.path} has no job.sh, so it cannot be submitted again.")
    text = script.read_text("utf-8", "surrogateescape")
    if (changed := changed_script(text, changes)) != text:
        write_text(script, changed)
    excluded = run.path / EXCLUDED
    options = [f"--exclude={excluded.read_text().strip()}"] if excluded.is_file() else []
    (run.path / CANCELLED_FILE).unlink(missing_ok=True)
    job_id = submit(script, options=options, cwd=run.cwd or None)
    run.add_job_id(job_id)
    return job_id


def changed_script(text: str, changes: Mapping[str, int | None]) -> str:
    """Return a job script with other limits: its line ``policy=(…)`` and its time."""
    given = {name: value for name, value in changes.items() if value is not None}
    if (time := given.pop("time", None)) is not None:
        text = _with_time(text, f"#SBATCH --time={format_time(time)}")
    if not given:
        return text
    found = _POLICY.search(text)
    if found is None:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{named}: this run is not requeued.\nSubmit it with --requeue for that.")
    policy = found[2]
    for name, value in given.items():
        policy = re.sub(
            rf"--{name.replace('_', '-')}=\d+", f"--{name.replace('_', '-')}={value}", policy
        )
    return text[: found.start()] + found[1] + policy + found[3] + text[found.end() :]


def _with_time(text: str, line: str) -> str:
    if _TIME.search(text):
        return _TIME.sub(line, text)
    changed, count = _DIRECTIVE.subn(lambda first: f"{line}\n{first[0]}", text, count=1)
    if not count:
        raise UsageError("--time: this run's job.sh has no #SBATCH line to put it next to.")
    return changed


def last_attempt_note(run: Run) -> str:
    """Return a note when the next attempt is the last one that the script's --max-attempts allows."""
    found = _POLICY.search((run.path / "job.sh").read_text("utf-8", "surrogateescape"))
    most = _MOST.search(found[2]) if found and "--requeue" in found[2] else None
    number = len(run.attempts) + 1
    if most is None or run.array or number < int(most[1]):
        return ""
    return (
        f"It is attempt {number}, and --max-attempts is {most[1]}: it is not requeued after that.\n"
        f"Raise that with: allranks resume --max-attempts {number + int(most[1])} {run.id}"
    )
