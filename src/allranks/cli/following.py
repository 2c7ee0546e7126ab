"""Watching a run: the waiting, the lines, the end."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone

import click

from allranks.cli.attempts import Between
from allranks.cluster.slurm.job_states import JobState
from allranks.runs.attempt import Attempt
from allranks.runs.log_follower import follow
from allranks.runs.log_lines import LogLine
from allranks.runs.run import Run
from allranks.schedulers.run_state import RunStatus, run_statuses

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
    return status.exit_code or (0 if status.state is JobState.COMPLETED else 1)


def _follow(run: Run, ranks: list[int] | None, errors: bool, as_json: bool) -> RunStatus:
    _wait(run)
    watch, tasks, between = _Watch(run), ArrayTasks(run), Between(run)
    for line in follow(run, ranks=ranks, errors=errors, stop=watch.over):
        task = tasks[line.attempt]
        if line.rank is not None and not as_json:
            say_between(between.line(line.attempt, task))
        show_line(line, task=task, as_json=as_json)
        sys.stdout.flush()
    return watch.seen[-1]


class _Watch:
    """Looks after a run until no attempt of it is to come."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seen: list[RunStatus] = []
        self.said = ""

    def over(self) -> bool:
        """Ended, or forgotten by Slurm before it could be asked: asked again a few times."""
        self.seen.append(run_statuses([Run.open(self.run.path)])[0])
        status = self.seen[-1]
        self._say_waiting(status)
        if status.state.ended and not self._goes_on():
            return True
        recent = self.seen[-PATIENCE:]
        over = [one.state is JobState.UNKNOWN or one.state.ended for one in recent]
        return len(over) == PATIENCE and all(over)

    def _goes_on(self) -> bool:
        """Whether its last word was that another attempt comes, which Slurm may not show yet."""
        last = self.run.last_attempt
        return last is not None and last.followed

    def _say_waiting(self, status: RunStatus) -> None:
        """Between two attempts the job waits in the queue again."""
        if status.state is JobState.PENDING and status.attempts:
            text = waiting_text(status)
            if text != self.said:
                click.echo(click.style(text, dim=True), err=True)
            self.said = text


def _wait(run: Run) -> None:
    """Say why the job waits, each time the reason changes."""
    said, unknown = "", 0
    while True:
        status = run_statuses([Run.open(run.path)])[0]
        unknown = unknown + 1 if status.state is JobState.UNKNOWN and not status.attempts else 0
        if status.state is not JobState.PENDING and not 0 < unknown < PATIENCE:
            break
        text = waiting_text(status)
        if text != said:
            click.echo(click.style(text, dim=True), err=True)
            said = text
        time.sleep(1)


def waiting_text(status: RunStatus) -> str:
    """Why a job is not running yet."""
    text = f"waiting: {status.why or 'no reason given yet'}"
    if status.expected_start:
        text += f"; expected to start at {local_time(status.expected_start)}"
    return text


def say_between(text: str) -> None:
    """The line between two attempts."""
    if text:
        click.secho(text, dim=True)


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
    from allranks.runtime.agent.first_error import summary

    last = run.last_attempt
    if last is not None and (text := summary(last.path)):
        click.echo(text, err=True)


def say_end(status: RunStatus) -> None:
    """The last line: how it ended."""
    colour = _END_COLOURS.get(status.state, "red")
    text = f"{status.run.id} {status.state.value}"
    if status.exit_code and status.state is not JobState.INTERRUPTED:
        text += f" (exit code {status.exit_code})"
    if status.why:
        text += f": {status.why}"
    click.echo(click.style(text, fg=colour), err=True)
    if status.state not in _END_COLOURS:
        click.echo(f"Errors: allranks logs --errors {status.run.id}", err=True)
    elif status.state is JobState.INTERRUPTED and "allranks resume" not in status.why:
        click.echo(f"Go on with: allranks resume {status.run.id}", err=True)


_END_COLOURS = {JobState.COMPLETED: "green", JobState.INTERRUPTED: "yellow"}
"""Ends without an error."""


def local_time(moment: datetime) -> str:
    """A time as people here read it."""
    local = moment.astimezone()
    today = datetime.now(timezone.utc).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")
