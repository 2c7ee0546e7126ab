"""Follow a run: why it waits, its log lines, its outcome."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone

import click

from allranks.cluster.slurm.job_states import JobState
from allranks.runs.attempt import Attempt
from allranks.runs.log_follower import follow
from allranks.runs.log_lines import LogLine
from allranks.runs.run_folder import Run
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus

UNKNOWN_POLLS = 5
"""How many times Slurm is polled for a job that it does not know."""

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
    """Print a run's log lines until it ends; return the exit code of the job."""
    try:
        status = _follow(run, ranks, errors, as_json)
    except KeyboardInterrupt:
        click.echo(
            f"\n{run.id} is still running. Cancel it with: allranks cancel {run.id}", err=True
        )
        return 130
    show_first_error(run)
    print_outcome(status)
    return status.exit_code or (0 if status.state is JobState.COMPLETED else 1)


def _follow(run: Run, ranks: list[int] | None, errors: bool, as_json: bool) -> RunStatus:
    _wait(run)
    watch, tasks, between = _RunPoller(run), ArrayTasks(run), AttemptSeparator(run)
    for line in follow(run, ranks=ranks, errors=errors, stop=watch.over):
        task = tasks[line.attempt]
        if line.rank is not None and not as_json:
            print_separator(between.line(line.attempt, task))
        show_line(line, task=task, as_json=as_json)
        sys.stdout.flush()
    return watch.seen[-1]


class _RunPoller:
    """Poll a run until it has ended and no further attempt follows."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seen: list[RunStatus] = []
        self.said = ""

    def over(self) -> bool:
        """Return whether the run has ended, or has been unknown to Slurm for several polls."""
        self.seen.append(run_statuses([Run.open(self.run.path)])[0])
        status = self.seen[-1]
        self._print_waiting(status)
        if status.state.ended and not self._is_followed():
            return True
        recent = self.seen[-UNKNOWN_POLLS:]
        over = [one.state is JobState.UNKNOWN or one.state.ended for one in recent]
        return len(over) == UNKNOWN_POLLS and all(over)

    def _is_followed(self) -> bool:
        """Return whether another attempt follows, which Slurm may not show yet."""
        last = self.run.last_attempt
        return last is not None and last.has_successor

    def _print_waiting(self, status: RunStatus) -> None:
        """Print why the job waits in the queue between two attempts."""
        if status.state is JobState.PENDING and status.attempts:
            text = waiting_text(status)
            if text != self.said:
                click.echo(click.style(text, dim=True), err=True)
            self.said = text


def _wait(run: Run) -> None:
    """Print why the job waits, each time the reason changes, until it starts."""
    said, unknown = "", 0
    while True:
        status = run_statuses([Run.open(run.path)])[0]
        unknown = unknown + 1 if status.state is JobState.UNKNOWN and not status.attempts else 0
        if status.state is not JobState.PENDING and not 0 < unknown < UNKNOWN_POLLS:
            break
        text = waiting_text(status)
        if text != said:
            click.echo(click.style(text, dim=True), err=True)
            said = text
        time.sleep(1)


def waiting_text(status: RunStatus) -> str:
    """Describe why a job is not running yet."""
    text = f"waiting: {status.why or 'no reason given yet'}"
    if status.expected_start:
        text += f"; expected to start at {local_time(status.expected_start)}"
    return text


def print_separator(text: str) -> None:
    """Print the line between two attempts."""
    if text:
        click.secho(text, dim=True)


class ArrayTasks(dict[int, str]):
    """Map an attempt to its array task, read when its first line appears."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.folder = run.path / "attempts"

    def __missing__(self, attempt: int) -> str:
        self[attempt] = Attempt.open(self.folder / str(attempt)).array_task
        return self[attempt]


def show_line(line: LogLine, *, task: str = "", as_json: bool = False) -> None:
    """Print ``[rank] text``, or ``[task:rank] text`` of an array, coloured by rank on a terminal."""
    if as_json:
        import json

        sys.stdout.write(json.dumps(asdict(line)) + "\n")
        return
    prefix = "" if line.rank is None else f"[{task}:{line.rank}] " if task else f"[{line.rank}] "
    if line.rank is not None and sys.stdout.isatty():
        prefix = click.style(prefix, fg=COLOURS[line.rank % len(COLOURS)])
    sys.stdout.write(f"{prefix}{line.text}\n")  # click.echo flushes each line


def show_first_error(run: Run) -> None:
    """Print the first error of the last attempt, after all other lines."""
    from allranks.runtime.agent.failures import summary

    last = run.last_attempt
    if last is not None and (text := summary(last.path)):
        click.echo(text, err=True)


def print_outcome(status: RunStatus) -> None:
    """Print how the run ended, and what to type next."""
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
        click.echo(f"Resume it with: allranks resume {status.run.id}", err=True)


_END_COLOURS = {JobState.COMPLETED: "green", JobState.INTERRUPTED: "yellow"}
"""Outcomes without an error."""


def local_time(moment: datetime) -> str:
    """Format a time in the local time zone; without the date if it is today."""
    local = moment.astimezone()
    today = datetime.now(timezone.utc).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")


class AttemptSeparator:
    """Describe how an attempt ended, before the first line of the next one."""

    def __init__(self, run: Run) -> None:
        self.folder = run.path / "attempts"
        self.seen: dict[str, int] = {}

    def line(self, attempt: int, task: str) -> str:
        """Return the separator to print before this line; empty within an attempt."""
        before = self.seen.get(task)
        if before is not None and attempt <= before:
            return ""
        self.seen[task] = attempt
        if before is None:
            return ""
        return separator(Attempt.open(self.folder / str(before)), attempt)


def separator(ended: Attempt, number: int) -> str:
    """``--- attempt 1 interrupted: Its time limit came near. … Now attempt 2. ---``."""
    how = ended.outcome or "killed"
    why = f": {ended.reason}" if ended.reason else "."
    return f"--- attempt {ended.number} {how}{why} Now attempt {number}. ---"
