"""Watching a run: the waiting, the lines, the end."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone

import click

from allranks.runs.attempts import Attempt
from allranks.runs.folder import Run
from allranks.runs.follow import follow
from allranks.runs.lines import LogLine
from allranks.schedulers.status import RunStatus, run_statuses
from allranks.slurm.states import State

PATIENCE = 5
"""How often Slurm is asked for a job that it does not know."""

COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
)


def follow_run(
    run: Run, *, ranks: list[int] | None = None, errors: bool = False, as_json: bool = False
) -> int:
    """Show a run until its end; the exit code is the job's."""
    try:
        status = _follow(run, ranks, errors, as_json)
    except KeyboardInterrupt:
        click.echo(f"\n{run.id} goes on. End it with: allranks cancel {run.id}", err=True)
        return 130
    show_first_error(run)
    say_end(status)
    return status.exit_code or (0 if status.state is State.COMPLETED else 1)


def _follow(run: Run, ranks: list[int] | None, errors: bool, as_json: bool) -> RunStatus:
    _wait(run)
    seen: list[RunStatus] = []

    def over() -> bool:
        """Ended, or forgotten by Slurm before it could be asked: asked again a few times."""
        seen.append(run_statuses([Run.open(run.path)])[0])
        lost = [status.state is State.UNKNOWN for status in seen[-PATIENCE:]]
        return seen[-1].state.ended or (len(lost) == PATIENCE and all(lost))

    tasks = ArrayTasks(run)
    for line in follow(run, ranks=ranks, errors=errors, stop=over):
        show_line(line, task=tasks[line.attempt], as_json=as_json)
        sys.stdout.flush()
    return seen[-1]


def _wait(run: Run) -> None:
    """Say why the job waits, each time the reason changes."""
    said, unknown = "", 0
    while True:
        status = run_statuses([Run.open(run.path)])[0]
        unknown = unknown + 1 if status.state is State.UNKNOWN and not status.attempts else 0
        if status.state is not State.PENDING and not 0 < unknown < PATIENCE:
            break
        text = f"waiting: {status.why or 'no reason given yet'}"
        if status.expected_start:
            text += f"; expected to start at {local_time(status.expected_start)}"
        if text != said:
            click.echo(click.style(text, dim=True), err=True)
            said = text
        time.sleep(1)


class ArrayTasks(dict[int, str]):
    """Attempt → the array task that it is; looked up once, when its first line comes."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.folder = run.path / "attempts"

    def __missing__(self, attempt: int) -> str:
        self[attempt] = Attempt.open(self.folder / str(attempt)).array_task
        return self[attempt]


def show_line(line: LogLine, *, task: str = "", as_json: bool = False) -> None:
    """One line: ``[rank] text``, of an array ``[task:rank] text``, coloured by rank on a terminal."""
    if as_json:
        import json

        sys.stdout.write(json.dumps(asdict(line)) + "\n")
        return
    prefix = "" if line.rank is None else f"[{task}:{line.rank}] " if task else f"[{line.rank}] "
    if line.rank is not None and sys.stdout.isatty():
        prefix = click.style(prefix, fg=COLOURS[line.rank % len(COLOURS)])
    sys.stdout.write(f"{prefix}{line.text}\n")  # click.echo flushes each line


def show_first_error(run: Run) -> None:
    """The error that explains the end, after all other lines."""
    from allranks.agent.summary import summary

    last = run.last_attempt
    if last is not None and (text := summary(last.path)):
        click.echo(text, err=True)


def say_end(status: RunStatus) -> None:
    """The last line: how it ended."""
    good = status.state is State.COMPLETED
    text = f"{status.run.id} {status.state.value}"
    if status.exit_code:
        text += f" (exit code {status.exit_code})"
    if status.why:
        text += f": {status.why}"
    click.echo(click.style(text, fg="green" if good else "red"), err=True)
    if not good:
        click.echo(f"Errors: allranks logs --errors {status.run.id}", err=True)


def local_time(moment: datetime) -> str:
    """A time as people here read it."""
    local = moment.astimezone()
    today = datetime.now(timezone.utc).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")
