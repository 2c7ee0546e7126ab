"""Gather the facts of a run from its folder, from Slurm and from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from allranks.cluster.slurm.accounting import job_usage
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_usage import Usage
from allranks.core.redaction import redact_text, redact_words
from allranks.errors import AllranksError
from allranks.observe.report.external_job import WAIT, is_job_of, used_by_job
from allranks.observe.report.job_records import (
    exact_command,
    installed_versions,
    original_command,
    requested_resources,
    trainer_settings,
    training_environment,
)
from allranks.observe.report.measured_usage import sampled_usage, without_foreign_gpus
from allranks.observe.report.model import AttemptFacts, Error, RunFacts, UsedResources
from allranks.observe.report.training_summary import (
    best_losses,
    diverged_losses,
    latest_values,
    slow_ranks,
    typical_values,
)
from allranks.observe.view.array_tasks import task_status
from allranks.observe.view.diagnostics import diagnostics
from allranks.observe.view.metric_columns import fit_start
from allranks.observe.view.model import PHASES, Diagnostic, RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.step_phases import mean_phases
from allranks.runs.atomic_files import read_json
from allranks.runs.attempt_history import AttemptSummary, goodput
from allranks.runs.run_folder import Run
from allranks.runs.run_records import plan_rows
from allranks.schedulers import run_statuses
from allranks.schedulers.run_state import RunStatus


def run_facts(
    run: Run, *, task: str | None = None, now: datetime | None = None
) -> tuple[RunFacts, RunSource]:
    """Return the facts, and the source from which plots are drawn."""
    source = RunSource(run, task)
    source.refresh()
    status = run_statuses([source.run], timeout=WAIT)[0]
    look = view_run(source, status)
    on_slurm = run.scheduler == "slurm" or bool(run.job_ids)
    usage, silence = _accounting(run) if on_slurm else (None, "")
    request, seen = requested_resources(run.path, usage, on_slurm), _used(source, usage)
    used = without_foreign_gpus(seen, request)
    facts = replace(
        _run_outcome(source, look),
        task=source.task or "",
        tasks=_tasks(source, status),
        scheduler="slurm" if on_slurm else run.scheduler or "local",
        user=usage.user if usage else "",
        waited=usage.waited if usage and len(run.job_ids) == 1 else None,
        requested=request,
        used=used,
        limitations=_limitations(source, seen, used, silence),
        time=now or datetime.now(timezone.utc),
    )
    return _with_training(_with_setting(facts, source), source, look), source


def _run_outcome(source: RunSource, look: RunView) -> RunFacts:
    """Return the identity and the outcome of the run."""
    run, status = source.run, look.status
    # Of an array, those of the one task that the source follows.
    entries = [one for one in look.attempts if one.attempt.array_task == (source.task or "")]
    attempts, good = _attempt_facts_list(entries), goodput(entries)
    return RunFacts(
        name=run.name,
        id=run.id,
        kind="run",
        state=status.state.value,
        ended=status.state.ended or status.state is JobState.UNKNOWN,
        exit_code=status.exit_code,
        why=redact_text(status.why),
        job_ids=run.job_ids,
        folder=str(run.path),
        submitted=run.created,
        start=attempts[0].start if attempts else status.start,
        end=status.end,
        seconds=sum(attempt.seconds for attempt in attempts),
        attempts=attempts,
        goodput=good.share if look.progress.step else None,
        useful=good.useful,
        error=_error(look),
        findings=_findings(run),
    )


def _tasks(source: RunSource, status: RunStatus) -> dict[str, str]:
    """Return the state of each task of an array, in the order of their numbers."""
    last = sorted(source.run_attempts.last().items(), key=lambda each: (len(each[0]), each[0]))
    return {task: task_status(status, task, [attempt]).state.value for task, attempt in last}


def _with_setting(facts: RunFacts, source: RunSource) -> RunFacts:
    """Add what the run executed, and where."""
    run, last = source.run, source.last.attempt if source.last else None
    plan = read_json(run.path / "plan.json")
    return replace(
        facts,
        launcher=str(plan.get("launcher") or (last.launcher if last else "")),
        framework=str(plan.get("framework") or ""),
        hosts=list(last.hosts) if last else [],
        settings=trainer_settings(source.folder),
        versions=installed_versions(run.path, plan),
        environment=training_environment(last.path) if last else {},
        plan_values=[(name, _safe(value), origin) for name, value, origin in plan_rows(plan)],
        original_command=original_command(run),
        exact_command=exact_command(run),
    )


def _with_training(facts: RunFacts, source: RunSource, look: RunView) -> RunFacts:
    """Add what its steps show."""
    return replace(
        facts,
        phases={name: value for name, value in mean_phases(source).items() if name in PHASES},
        values=latest_values(look),
        typical=typical_values(source),
        best=best_losses(source),
        diverged=diverged_losses(source),
        step=look.progress.step,
        total_steps=look.progress.total_steps,
        slow=slow_ranks(source),
    )


def _accounting(run: Run) -> tuple[Usage | None, str]:
    """Return what Slurm recorded of the last job, or why there is nothing."""
    if not run.job_ids:
        return None, ""
    try:
        usage = job_usage(run.job_ids[-1], timeout=WAIT)
    except AllranksError as error:
        return None, str(error).splitlines()[0]
    return (usage if usage and is_job_of(run, usage) else None), ""


def _used(source: RunSource, usage: Usage | None) -> UsedResources:
    """Return the run's own samples, which are finer than accounting, else what accounting has."""
    own = sampled_usage(source)
    return own if own.source or usage is None else used_by_job(usage)


def _attempt_facts_list(entries: Sequence[AttemptSummary]) -> list[AttemptFacts]:
    following = [*entries[1:], None]
    return [_attempt_facts(entry, after) for entry, after in zip(entries, following, strict=False)]


def _attempt_facts(entry: AttemptSummary, after: AttemptSummary | None) -> AttemptFacts:
    attempt = entry.attempt
    return AttemptFacts(
        number=attempt.number,
        job_id=attempt.job_id,
        start=attempt.start,
        seconds=entry.seconds,
        hosts=attempt.hosts,
        first_step=entry.first_step,
        last_step=entry.last_step,
        kept_step=entry.kept_step,
        outcome=entry.outcome,
        reason=redact_text(attempt.reason),
        lost_steps=_lost(entry, after),
        useful=entry.useful,
    )


def _lost(entry: AttemptSummary, after: AttemptSummary | None) -> int:
    """Return the steps that no later attempt continued from."""
    if entry.last_step is None or entry.outcome in ("finished", "running"):
        return 0
    same = after is not None and after.attempt.array_task == entry.attempt.array_task
    built_on = after.first_step if after is not None and same else None
    if built_on is None:
        built_on = entry.kept_step or entry.first_step or 0
    return max(entry.last_step - built_on, 0)


def _error(look: RunView) -> Error | None:
    failure = look.error
    if failure is None:
        return None
    text = redact_text(failure.traceback)
    return Error(failure.rank, failure.host, failure.exit_code, failure.signal, text)


def _findings(run: Run) -> list[Diagnostic]:
    return [
        replace(each, message=redact_text(each.message), help=redact_text(each.help))
        for each in diagnostics(run)
        if each.source != "run"  # the failure is shown separately, with its traceback
    ]


def _safe(value: str) -> str:
    return " ".join(redact_words(value.split(" ")))


def _limitations(
    source: RunSource, seen: UsedResources, used: UsedResources, silence: str
) -> list[str]:
    """Return what is missing in this report, and why."""
    found = []
    if not used.source:
        found.append("The nodes were not sampled, so how they were used is unknown.")
    elif len(used.gpus) < len(seen.gpus):
        found.append(
            "The nodes showed more GPUs than were requested, so it is unknown which this run used."
        )
    elif used.source == "samples" and not used.gpus:
        found.append("No GPU was seen by the sampler.")
    if not len(source.train):
        found.append("There are no metrics: a Trainer writes them, also in a loop of your own.")
    elif fit_start(source):
        found.append(
            "The script trained several times; losses and steps are those of the last time."
        )
    if silence:
        found.append(f"Slurm's accounting did not answer: {silence}")
    return found
