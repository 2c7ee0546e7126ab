"""What follows an attempt: nothing, a restart in place, a requeue, a new job, or the end of the run.

A training that saved and exited is requeued as long as it leaves newer checkpoints; a failure is only
repeated with ``--restarts``; what a user cancelled stays cancelled. Every decision has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from allranks.cluster.slurm.job_states import JobState
from allranks.errors import NOT_RETRIED, Interrupted
from allranks.runs.atomic_files import write_json
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import (
    NOT_STARTED,
    AttemptSummary,
    attempts_of,
    attempts_without_progress,
    task_history,
)
from allranks.runs.progress_file import record_interruption
from allranks.runtime.agent.agent_options import RequeuePolicy
from allranks.runtime.agent.scontrol_job import JobFacts

CANCELLED_FILE = "cancelled"
"""Written into the run folder by ``allranks cancel``: Slurm's own record of it may be lost."""
REQUEUES = ("requeue", "resubmit")
"""Decisions that the job script carries out through Slurm."""


class Decision(NamedTuple):
    """What follows an attempt, and the exit code of the job script when nothing does."""

    next: str
    """done, restart, requeue, resubmit, requeued (Slurm has done it) or stop."""
    code: int
    outcome: str
    reason: str


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended, as far as its job script knows."""

    attempt: Attempt
    code: int
    """The first failure's exit code, else the launcher's."""
    policy: RequeuePolicy = field(default_factory=RequeuePolicy)
    job: JobFacts = field(default_factory=JobFacts)
    terminated: bool = False
    """The job script itself (or ``allranks run``) received TERM."""
    lost: list[str] = field(default_factory=list)
    """Nodes that do not respond."""
    not_started: bool = False
    """The job script failed before it launched the ranks."""
    gave_up: bool = False
    """Slurm refused to requeue or did not answer, and the script does not try again."""

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.attempt.path.parent.parent

    @property
    def cause(self) -> JobState | None:
        """Who or what ended the job; None if its ranks ended by themselves."""
        if (self.run / CANCELLED_FILE).exists():
            return JobState.CANCELLED
        return self.job.ended_by or (JobState.CANCELLED if self.terminated else None)


def end_attempt(end: AttemptEnd) -> Decision:
    """Decide what follows an attempt that is over, and record it in its folder."""
    attempt = end.attempt
    if end.code == Interrupted.EXIT_CODE and not attempt.interrupted:
        record_interruption(attempt.path, f"it left with exit code {Interrupted.EXIT_CODE}")
    if end.lost:
        write_json(attempt.path / "nodes.json", {"nodes": end.lost})
    decision = decide(end, _history(attempt))
    _record(end, decision)
    return decision


def requeue_early(end: AttemptEnd) -> Decision | None:
    """Decide while the ranks still run, if Slurm is about to kill them; None: wait for their end."""
    decision = decide(end, _history(end.attempt))
    if not end.job.ending or not (decision.next in REQUEUES or end.gave_up):
        return None
    _record(end, decision)
    return decision


def _record(end: AttemptEnd, decision: Decision) -> None:
    end.attempt.finish(
        decision.code if decision.next in ("done", "stop") else end.code,
        outcome=decision.outcome,
        reason=decision.reason,
        next=decision.next,
    )


def _history(attempt: Attempt) -> list[AttemptSummary]:
    """Return the attempts of this array task up to this one."""
    known = attempts_of(attempt.path.parent.parent, attempt.array_task)
    return task_history([each for each in known if each.number <= attempt.number])


def decide(end: AttemptEnd, history: list[AttemptSummary]) -> Decision:
    """Apply the rules, in their order."""
    cause, interrupted = end.cause, end.attempt.interrupted
    if cause is JobState.CANCELLED:
        clean = end.terminated and not end.job.ended_by and not interrupted
        reason = f"The job was cancelled{_saved(history)}."
        return Decision("stop", end.code or (0 if clean else 143), cause.outcome, reason)
    if cause is JobState.REQUEUED:
        lost = JobState.NODE_FAIL if end.lost else JobState.PREEMPTED
        return Decision("requeued", 0, lost.outcome, f"Slurm requeued the job{_saved(history)}.")
    if interrupted:
        outcome = cause.outcome if cause else "interrupted"
        return _requeue(end, history, outcome, _sentence(interrupted))
    if cause:
        reason = f"Slurm ended the job ({cause.outcome}) before its ranks had exited."
        return _requeue(end, history, cause.outcome, reason)
    if end.code == 0:
        return Decision("done", 0, "finished", f"Attempt {end.attempt.number} has finished.")
    if end.lost:
        reason = f"The job lost {', '.join(end.lost)} (exit code {end.code})."
        return _requeue(end, history, JobState.NODE_FAIL.outcome, reason)
    return _restart(end, history)


def _requeue(end: AttemptEnd, history: list[AttemptSummary], outcome: str, reason: str) -> Decision:
    """Requeue the job within the limits of its policy."""
    code = end.code or Interrupted.EXIT_CODE
    if not end.policy.requeue:
        refusal = f"It has not finished. {_resume(end)}"
    elif limit := _limit(end, history):
        refusal = limit
    elif end.gave_up:
        code, refusal = Interrupted.EXIT_CODE, f"Slurm did not requeue it. {_resume(end)}"
    else:
        saved = "" if "saved" in reason.lower() else _saved(history)
        if end.job.may_requeue:
            return Decision("requeue", 0, outcome, f"{reason} The job is requeued{saved}.")
        return Decision("resubmit", 0, outcome, f"{reason} A new job resumes it{saved}.")
    return Decision("stop", code, outcome, f"{reason} {refusal}")


def _restart(end: AttemptEnd, history: list[AttemptSummary]) -> Decision:
    """Start failed ranks again in place, as far as ``--restarts`` allows it."""
    code, allowed, done = end.code, end.policy.restarts, _restarts(history[:-1])
    failed = f"The ranks failed with exit code {code}"
    if end.not_started:
        reason = f"The job failed with exit code {code} before its ranks were started."
    elif code in NOT_RETRIED:
        reason = f"{failed}, which another attempt would repeat."
    elif done >= allowed:
        reason = f"{failed} after {done} of {allowed} restarts." if allowed else f"{failed}."
    elif limit := _limit(end, history, reports_progress=end.attempt.progress is not None):
        reason = f"{failed}. {limit}"
    else:
        reason = f"{failed}. Restart {done + 1} of {allowed} follows{_saved(history)}."
        return Decision("restart", code, "failed", reason)
    return Decision("stop", code, "failed", reason)


def _limit(end: AttemptEnd, history: list[AttemptSummary], reports_progress: bool = True) -> str:
    """Return which limit of the policy is reached, and how to raise it; empty if none is."""
    count, most = len(history), end.policy.max_attempts
    if count >= most:
        return (
            f"This was attempt {count}, and --max-attempts is {most}. "
            f"{_resume(end, f'--max-attempts {count + most} ')}"
        )
    idle = attempts_without_progress(history)
    if reports_progress and idle >= end.policy.max_no_progress:
        return no_progress_reason(idle)
    return ""


def no_progress_reason(count: int) -> str:
    """Return the sentence about attempts that did not get further."""
    attempts = "1 attempt" if count == 1 else f"{count} attempts in a row"
    return f"{attempts} left no newer checkpoint (--max-no-progress)."


def _restarts(earlier: list[AttemptSummary]) -> int:
    """Count the restarts that led to this attempt; a job that only changed nodes does not reset it."""
    count = 0
    for summary in reversed(earlier):
        if summary.outcome in NOT_STARTED:
            continue
        if summary.attempt.next != "restart":
            break
        count += 1
    return count


def _resume(end: AttemptEnd, options: str = "") -> str:
    return f"Resume it with: allranks resume {options}{end.run.name}"


def _saved(history: list[AttemptSummary]) -> str:
    step = max((one.kept_step for one in history if one.kept_step is not None), default=None)
    return "" if step is None else f" (saved at step {step})"


def _sentence(reason: str) -> str:
    text = reason.splitlines()[0].rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def first_error(attempt: Path, code: int) -> int:
    """Return the exit code of the rank that failed first; launchers give another's, or always 1."""
    from allranks.runtime.agent.failures import read_failures

    failures = read_failures(attempt)
    return int(failures[0]["exit_code"]) if code and failures else code
