"""The diagnostics of a run: its failure, and the findings of lint and check."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.cluster.slurm.job_states import JobState
from allranks.errors import AllranksError
from allranks.observe.check import CHECK_FILE
from allranks.observe.view.model import Diagnostic
from allranks.runs.atomic_files import read_json
from allranks.runs.attempt import Attempt, Failure
from allranks.runs.exit_reasons import KILLS
from allranks.runs.run_folder import Run
from allranks.schedulers import folder_status


def diagnostics(run: Run) -> list[Diagnostic]:
    """Return the failure first, then the findings, errors before warnings."""
    found = [*_failures(run), *_check(run), *_lint(run)]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda each: (each.source != "run", order.get(each.severity, 3)))


def _lint(run: Run) -> Iterator[Diagnostic]:
    """Yield the lint findings of the submitted script; none when it cannot be read."""
    from allranks.lint.finding import NOTE
    from allranks.lint.linter import Settings, lint

    script = run.path / "job.sh"
    if not script.is_file():
        return
    try:
        report = lint([script], Settings(related=False))
    except AllranksError:
        return
    for finding in report.findings:
        if finding.severity > NOTE:
            yield Diagnostic(
                source="lint",
                severity=finding.severity.word,
                title=finding.title,
                message=finding.message,
                help=finding.help,
                rule=finding.rule,
                line=finding.span.line,
            )


def _check(run: Run) -> Iterator[Diagnostic]:
    """Yield the result of a run that was a check."""
    kept = read_json(run.path / CHECK_FILE)
    if kept:
        yield Diagnostic(
            source="check",
            severity="note" if kept.get("ok") else "warning",
            title=f"allranks check --{kept.get('check')}",
            message=" ".join(str(line) for line in kept.get("advice") or ()),
        )


def _failures(run: Run) -> Iterator[Diagnostic]:
    """Yield the failure of the last attempt, of a job array that of each task."""
    last = {attempt.array_task: attempt for attempt in run.attempts}
    for attempt in last.values():
        yield from _failure_of(run, attempt)


def _failure_of(run: Run, last: Attempt) -> Iterator[Diagnostic]:
    """Yield the first failure of an attempt, else the reason for its bad end."""
    if last.outcome == "finished":
        return
    failure = last.first_failure()
    if failure is not None:
        yield _failure(run, last, failure)
    elif last.reason and last.exit_code:
        yield Diagnostic(
            source="run",
            severity="warning" if last.has_successor else "error",
            title=f"{_task(last)}Attempt {last.number}: {last.outcome or 'ended'}",
            message=last.reason,
        )
    elif _was_killed(run, last):
        yield Diagnostic(
            source="run",
            severity="warning" if last.has_successor else "error",
            title=f"{_task(last)}Attempt {last.number}: killed",
            message=f"It was killed from outside: {KILLS}.",
            help=f"allranks logs {run.id}",
        )


def _was_killed(run: Run, last: Attempt) -> bool:
    """Return whether the attempt was killed: another process recorded its end, or none did and it is gone."""
    if last.outcome or run.array:
        return last.outcome == "killed"
    return folder_status(run).state is JobState.FAILED


def _failure(run: Run, attempt: Attempt, failure: Failure) -> Diagnostic:
    where = f" on {failure.host}" if failure.host else ""
    return Diagnostic(
        source="run",
        severity="error",
        title=f"{_task(attempt)}Rank {failure.rank} failed first{where}: {failure.how}",
        message=failure.error or "There is no traceback.",
        help=f"allranks logs --errors --attempt {attempt.number} {run.id}",
    )


def _task(attempt: Attempt) -> str:
    return f"Task {attempt.array_task}: " if attempt.array_task else ""
