"""One more attempt of a run that has ended: its script is submitted again into the same folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.submission import submit
from allranks.core.units import format_time
from allranks.errors import JobError, UsageError
from allranks.job.layers import file_layer
from allranks.job.plan import Plan
from allranks.job.resolve import resolve
from allranks.runs.atomic_files import read_json, write_text
from allranks.runs.run import Run
from allranks.runtime.agent.attempt_end import CANCELLED_FILE
from allranks.runtime.agent.attempt_start import EXCLUDED
from allranks.schedulers.local import local_gpus, machine_layer
from allranks.schedulers.run_state import run_statuses

_POLICY = re.compile(r"^( *policy=\()(.*)(\))$", re.MULTILINE)
_TIME = re.compile(r"^#SBATCH --time=.*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH .*$", re.MULTILINE)
_MOST = re.compile(r"--max-attempts=(\d+)")


def check_resumable(run: Run, force: bool) -> None:
    """Refuse a run that still runs, or may, or that has nothing left to do."""
    status = run_statuses([run])[0]
    guessed = run.scheduler == "local" and not status.is_here and status.attempts
    if guessed and not status.state.ended:
        if not force:
            raise JobError(
                f"{run.id}: {status.why}, and a second attempt would write the same files.\n"
                f"If it has ended: allranks resume --force {run.id}"
            )
    elif not status.state.ended and status.state is not JobState.UNKNOWN:
        job = f", job {status.job_id}" if status.job_id else ""
        raise JobError(
            f"{run.id} has not ended ({status.state.value}{job}): a second attempt would write the "
            f"same files.\nWatch it: allranks logs -f {run.id}\nEnd it: allranks cancel {run.id}"
        )
    if not run.finished:
        return
    if not force:
        raise JobError(
            f"{run.id} has finished: there is nothing left to do.\n"
            f"Start it once more all the same: allranks resume --force {run.id}"
        )
    for sign in run.path.glob("finished*"):
        sign.unlink()


def submit_again(run: Run, changes: Mapping[str, int | None]) -> str:
    """Hand the run's script to Slurm once more; the id of the job."""
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
    """A job script with other limits: its line ``policy=(…)`` and its time."""
    given = {name: value for name, value in changes.items() if value is not None}
    if (time := given.pop("time", None)) is not None:
        text = _with_time(text, f"#SBATCH --time={format_time(time)}")
    if not given:
        return text
    found = _POLICY.search(text)
    if found is None:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"{named}: this run does not go on by itself.\nSubmit it with --requeue for that."
        )
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
    """That the next attempt is the last one that the script's --max-attempts allows, if it is."""
    found = _POLICY.search((run.path / "job.sh").read_text("utf-8", "surrogateescape"))
    most = _MOST.search(found[2]) if found and "--requeue" in found[2] else None
    number = len(run.attempts) + 1
    if most is None or run.array or number < int(most[1]):
        return ""
    return (
        f"It is attempt {number}, and --max-attempts is {most[1]}: it does not go on by itself after it.\n"
        f"Raise that with: allranks resume --max-attempts {number + int(most[1])} {run.id}"
    )


def local_plan(run: Run) -> Plan:
    """The plan of a run on this machine, as it was: what was typed then counts as typed now."""
    if not (run.path / "job.toml").is_file():
        raise UsageError(
            f"{run.path} has no job.toml: it was not started by allranks run.\n"
            "Start its script again; resume='auto' or a path in TrainConfig goes on from its checkpoints."
        )
    os.chdir(run.cwd or Path.cwd())
    config = run.path / "job.toml"
    record = read_json(run.path / "plan.json").get("values")
    rows = [row for row in record if isinstance(row, dict)] if isinstance(record, list) else []
    typed = {
        str(row.get("name")) for row in rows if row.get("origin") in ("command line", "Python")
    }
    values = {name: value for name, value in file_layer(config).values.items() if name in typed}
    machine = machine_layer(local_gpus())
    return resolve(values, "local", config=str(config), between=(machine,))
