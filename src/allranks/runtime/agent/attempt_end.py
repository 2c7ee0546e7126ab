"""What follows an attempt: nothing, the same ranks again, the queue again, or the end.

Rules: a training that left on purpose goes on while it leaves newer checkpoints; a crash is only
repeated where that was asked for; what a user ended stays ended. Every decision is one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from allranks.errors import NEVER_AGAIN, Interrupted
from allranks.runs.atomic_files import write_json
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import (
    NEVER_BEGAN,
    AttemptSummary,
    attempts_of,
    attempts_without_progress,
    task_history,
)
from allranks.runs.progress_file import note_interrupted
from allranks.runtime.agent.requeue_policy import Policy
from allranks.runtime.agent.scontrol_facts import (
    CANCELLED,
    NODE_LOST,
    PREEMPTED,
    REQUEUED,
    JobFacts,
)

CANCELLED_FILE = "cancelled"
"""Written into the run folder by ``allranks cancel``: Slurm's own record of it may be lost."""
BACK = ("requeue", "resubmit")
"""The ways back into the queue."""


class Decision(NamedTuple):
    """What follows, and the exit code to leave with when nothing does."""

    next: str
    """done, restart, requeue, resubmit, requeued (Slurm has done it) or stop."""
    code: int
    outcome: str
    sentence: str


@dataclass(frozen=True)
class End:
    """How an attempt ended, as far as its job script knows."""

    attempt: Attempt
    code: int
    """The first failure's exit code, else the launcher's."""
    policy: Policy = field(default_factory=Policy)
    job: JobFacts = field(default_factory=JobFacts)
    told: bool = False
    """The job script itself (or ``allranks run``) was told to end."""
    lost: list[str] = field(default_factory=list)
    """Nodes that do not answer."""
    unstarted: bool = False
    """The job script failed before it came to its launch."""
    stuck: bool = False
    """The way back was tried for a while, in vain."""

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.attempt.path.parent.parent


def after(end: End) -> Decision:
    """Decide what follows an attempt that is over, and write it into its folder."""
    attempt = end.attempt
    if end.code == Interrupted.EXIT_CODE and not attempt.interrupted:
        note_interrupted(attempt.path, f"it left with exit code {Interrupted.EXIT_CODE}")
    if end.lost:
        write_json(attempt.path / "nodes.json", {"nodes": end.lost})
    decision = decide(end, _story(attempt))
    _write(end, decision)
    return decision


def early(end: End) -> Decision | None:
    """The same while its ranks still run, when that is the last chance to ask for another attempt."""
    decision = decide(end, _story(end.attempt))
    if not end.job.dying or not (decision.next in BACK or end.stuck):
        return None
    _write(end, decision)
    return decision


def _write(end: End, decision: Decision) -> None:
    end.attempt.finish(
        decision.code if decision.next in ("done", "stop") else end.code,
        outcome=decision.outcome,
        reason=decision.sentence,
        next=decision.next,
    )


def _story(attempt: Attempt) -> list[AttemptSummary]:
    """The attempts of this task up to this one."""
    known = attempts_of(attempt.path.parent.parent, attempt.array_task)
    return task_history([each for each in known if each.number <= attempt.number])


def decide(end: End, entries: list[AttemptSummary]) -> Decision:
    """The rules, in their order."""
    cause = _cause(end)
    if cause == CANCELLED:
        text = f"It was cancelled{_saved(entries)}: it ends here."
        good = end.told and not end.job.ended_by and not end.attempt.interrupted
        return Decision("stop", end.code or (0 if good else 143), CANCELLED, text)
    if cause == REQUEUED:
        text = f"Slurm itself has put the job back into the queue{_saved(entries)}."
        return Decision(REQUEUED, 0, NODE_LOST if end.lost else PREEMPTED, text)
    if end.attempt.interrupted:
        return _go_on(end, entries, cause or "interrupted", _sentence(end.attempt.interrupted))
    if cause:
        return _go_on(end, entries, cause, f"Slurm ended it ({cause}) before its ranks had left.")
    if end.code == 0:
        return Decision("done", 0, "finished", f"Attempt {end.attempt.number} has finished.")
    if end.lost:
        names = ", ".join(end.lost)
        return _go_on(end, entries, NODE_LOST, f"It lost {names} (exit code {end.code}).")
    return _crashed(end, entries)


def _cause(end: End) -> str:
    """Why Slurm or a user ended it; a job script that is told to end by anybody else is cancelled."""
    if (end.run / CANCELLED_FILE).exists():
        return CANCELLED
    return end.job.ended_by or (CANCELLED if end.told else "")


def _go_on(end: End, entries: list[AttemptSummary], outcome: str, why: str) -> Decision:
    """Once more through the queue, while that is allowed and gets the model further."""
    policy, count, idle = end.policy, len(entries), attempts_without_progress(entries)
    code = end.code or Interrupted.EXIT_CODE
    if not policy.requeue:
        text = f"{why} It has not finished; go on with: allranks resume {end.run.name}"
        return Decision("stop", code, outcome, text)
    if count >= policy.max_attempts:
        return Decision("stop", code, outcome, f"{why} {_last(end, count)}")
    if idle >= policy.max_no_progress:
        text = f"{why} {_idle(idle)}: it stops."
        return Decision("stop", code, outcome, text)
    if end.stuck:  # the record must not say that it goes on
        text = f"{why} Slurm could not be told to go on; do it with: allranks resume {end.run.name}"
        return Decision("stop", code, outcome, text)
    saved = "" if "saved" in why.lower() else _saved(entries)
    if end.job.may_requeue:
        return Decision("requeue", 0, outcome, f"{why} It goes back into the queue{saved}.")
    return Decision("resubmit", 0, outcome, f"{why} It goes on in a new job{saved}.")


def _crashed(end: End, entries: list[AttemptSummary]) -> Decision:
    """Ranks that failed by themselves."""
    code, allowed, idle = end.code, end.policy.restarts, attempts_without_progress(entries)
    failed = f"It failed with exit code {code}"
    done, tells = _restarts(entries[:-1]), end.attempt.progress is not None
    if end.unstarted:
        text = f"{failed} before its ranks were started: it stops."
    elif code in NEVER_AGAIN:
        text = f"{failed}, a mistake that another attempt would only repeat: it stops."
    elif done >= allowed:
        text = f"{failed} after {done} of {allowed} restarts." if allowed else f"{failed}."
    elif len(entries) >= end.policy.max_attempts:
        text = f"{failed}. {_last(end, len(entries))}"
    elif tells and idle >= end.policy.max_no_progress:
        text = f"{failed}. {_idle(idle)}: it stops."
    else:
        text = f"{failed}; its ranks are started again{_saved(entries)}, restart {done + 1} of {allowed}."
        return Decision("restart", code, "failed", text)
    return Decision("stop", code, "failed", text)


def _restarts(earlier: list[AttemptSummary]) -> int:
    """How many restarts led to this attempt; a job that only took other nodes does not begin anew."""
    count = 0
    for entry in reversed(earlier):
        if entry.outcome in NEVER_BEGAN:
            continue
        if entry.attempt.next != "restart":
            break
        count += 1
    return count


def _last(end: End, count: int) -> str:
    """That the limit is reached, and how to raise it."""
    most = end.policy.max_attempts
    return (
        f"That was attempt {count}, and --max-attempts is {most}: it stops. "
        f"Go on with: allranks resume --max-attempts {count + most} {end.run.name}"
    )


def _saved(entries: list[AttemptSummary]) -> str:
    step = max((one.kept_step for one in entries if one.kept_step is not None), default=None)
    return "" if step is None else f" (saved at step {step})"


def _idle(count: int) -> str:
    who = "1 attempt" if count == 1 else f"{count} attempts in a row"
    return f"{who} left no newer checkpoint (--max-no-progress)"


def _sentence(reason: str) -> str:
    text = reason.splitlines()[0].rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def first_error(attempt: Path, code: int) -> int:
    """The exit code of the rank that failed first; launchers give another's, or always 1."""
    from allranks.runtime.agent.first_error import read_failures

    failures = read_failures(attempt)
    return int(failures[0]["exit_code"]) if code and failures else code
