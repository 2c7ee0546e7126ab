"""Advice on the outcome of a run: its failure, its time limit, work lost between attempts."""

from __future__ import annotations

from allranks.core.formatting import percent, span
from allranks.observe.report.advice.base import (
    Advice,
    format_count,
    integer_setting,
    join_names,
    option_to_type,
    round_down,
    round_time,
    short_time,
    time_setting,
    train_config,
)
from allranks.observe.report.model import AttemptFacts, RunFacts
from allranks.runs.exit_reasons import KILLS, describe_exit, error_line

FAILED = ("failed", "node failed")
EARLY = 120.0
"""Seconds: a failure before this came at the start."""
TIME_WASTE = 0.5
TIME_LEAST = 1800
"""Time limits below this many seconds are short enough."""
TIME_HEADROOM = 1.3
TIME_TIGHT = 0.9
LOST, LOST_LEAST = 0.05, 300.0
"""Of the time on the nodes, and seconds: less is not worth more checkpoints."""
SAVE_TIME = 900
"""Seconds between two checkpoints that lose little."""
GPU_MEMORY_OUT = ("CUDA out of memory", "HIP out of memory", "OutOfMemoryError")


def failure(facts: RunFacts) -> Advice | None:
    """Explain the failure that ended the run."""
    if not _failed(facts):
        return None
    error = facts.error
    if error is None and facts.killed:
        return _killed(facts)
    after = f" after {span(facts.seconds)}" if facts.seconds else ""
    early = facts.seconds < EARLY and not facts.step and facts.kind == "run"
    when = f"{_who(facts)} failed{after}{', before its first step' if early else ''}"
    if error is None:
        code = f" with exit code {facts.exit_code}" if facts.exit_code else ""
        return Advice("failed", "error", f"{when}{code}.", _logs(facts))
    where = f" on {error.host}" if error.host else ""
    how = describe_exit(error.exit_code, error.signal)
    said = error_line(error.traceback)
    what = f": {said}" if said else "."
    text = f"{when}. Rank {error.rank}{where} failed first, {how}{what}"
    return Advice("failed", "error", text, _logs(facts))


def _killed(facts: RunFacts) -> Advice:
    """Explain a kill from outside, of which only the last log lines are left."""
    known = f", {span(facts.seconds)} after it began or later" if facts.seconds else ""
    text = f"It was killed from outside{known}: {KILLS}."
    return Advice("failed", "error", text, f"allranks logs {facts.id}")


def _who(facts: RunFacts) -> str:
    """Return the subject of the sentence; for an array as a whole its failed tasks."""
    failed = [task for task, state in facts.tasks.items() if state in FAILED]
    if facts.task or not failed:
        return "It"
    return f"Task{'s' if len(failed) > 1 else ''} {join_names(failed)} of {len(facts.tasks)}"


def diverged(facts: RunFacts) -> Advice | None:
    """Report a loss that became NaN or infinite and stayed so."""
    if not facts.diverged:
        return None
    name, since = next(iter(facts.diverged.items()))
    loss = "validation loss" if name == "val_loss" else "loss"
    whole = f" of {facts.total_steps:,}" if facts.total_steps else ""
    text = f"The {loss} is not finite since step {since:,}{whole}"
    if not facts.ended:
        text += ": further steps are wasted."
        return Advice("diverged", "error", text, f"allranks cancel {facts.id}")
    if name == "train_loss" and facts.step and facts.step > since:
        text += f": {percent((facts.step - since) / facts.step)} of the run was wasted"
    text += f". {_stability_hint(facts)}"
    changes = {} if "clip_norm" in facts.settings else {"clip_norm": 1.0}
    return Advice("diverged", "error", text, train_config(facts, **changes))


def _stability_hint(facts: RunFacts) -> str:
    """Return what to try against a diverging loss."""
    half = ", bf16 in place of fp16" if facts.settings.get("precision") == "fp16" else ""
    text = f"Try a lower learning rate, a warm-up, clipped gradients{half}, or look at the data."
    if facts.settings:
        text += " EarlyStopping(stop_on_nan=True) ends such a training."
    return text


def gpu_memory_out(facts: RunFacts) -> Advice | None:
    """Advise on a GPU that ran out of memory."""
    if facts.error is None or not _failed(facts):
        return None
    if not any(sign in facts.error.traceback for sign in GPU_MEMORY_OUT):
        return None
    settings = facts.settings
    recomputes = settings.get("activation_checkpointing", "False") != "False"
    shards = any(word in settings.get("strategy", "") for word in ("fsdp", "deepspeed"))
    ways = [
        "halve the batch_size and accumulate twice as many gradients, so that a step stays the same",
        *([] if recomputes else ["recompute activations"]),
        *([] if shards else ["shard the model (strategy='fsdp')"]),
    ]
    text = f"The GPU's memory was full: {', or '.join(ways)}."
    changes = {"accumulate": 2 * (integer_setting(facts, "accumulate") or 1)}
    if not recomputes:
        changes["activation_checkpointing"] = True
    return Advice("gpu-memory-out", "error", text, train_config(facts, **changes))


def resume(facts: RunFacts) -> Advice | None:
    """Advise to resume a run that saved a checkpoint and exited before the end of its training."""
    if facts.kind != "run" or facts.state != "interrupted":
        return None
    how_far = f" at step {facts.step:,}" if facts.step else ""
    whole = f" of {facts.total_steps:,}" if facts.step and facts.total_steps else ""
    text = f"It saved a checkpoint and exited{how_far}{whole}; it can be resumed from there."
    return Advice("resume", "note", text, f"allranks resume {facts.id}")


def time_limit(facts: RunFacts) -> Advice | None:
    """Advise on a time limit that was too long, nearly too short, or too short."""
    limit = facts.requested.time_limit
    if facts.state == "timeout":
        return _timed_out(facts, limit)
    if not limit or facts.state != "completed" or len(facts.attempts) > 1:
        return None
    if facts.seconds >= TIME_TIGHT * limit:
        text = (
            f"It took {span(facts.seconds)} of its time limit of {span(limit)}, "
            f"{percent(facts.seconds / limit)}: the next one may not make it."
        )
        more = round_time(facts.seconds * TIME_HEADROOM)
        return Advice("time-tight", "warning", text, option_to_type(facts, "time", more))
    enough = round_time(max(facts.seconds * TIME_HEADROOM, facts.seconds + 600))
    if limit < TIME_LEAST or enough > TIME_WASTE * limit:
        return None
    text = (
        f"You asked for {span(limit)} and it took {span(facts.seconds)}: a job that asks for less "
        "time often starts sooner."
    )
    return Advice("time", "note", text, option_to_type(facts, "time", enough))


def _timed_out(facts: RunFacts, limit: int | None) -> Advice:
    text = "It ran into its time limit" + (f" of {span(limit)}" if limit else "")
    more = option_to_type(facts, "time", round_time(limit * 2)) if limit else ""
    if facts.kind == "job":
        return Advice("time-out", "error", f"{text}: ask for more.", more)
    if ("requeue", "True") in [(name, value) for name, value, _ in facts.plan_values]:
        text += " before it had saved; resume it from its last checkpoint."
        return Advice("time-out", "error", text, f"allranks resume {facts.id}")
    if not facts.settings:
        text += ": ask for more. If your script saves and resumes, --requeue resumes it by itself."
        return Advice("time-out", "error", text, more)
    text += ". With --requeue it saves before the limit and resumes by itself."
    return Advice("time-out", "error", text, "--requeue")


def lost_work(facts: RunFacts) -> Advice | None:
    """Advise on steps that were done twice, because the last checkpoint was old."""
    losers = [attempt for attempt in facts.attempts if attempt.lost_steps > 0]
    seconds = sum(_lost_seconds(attempt) for attempt in losers)
    if seconds < LOST_LEAST or seconds < LOST * facts.seconds:
        return None
    which = ", ".join(str(attempt.number) for attempt in losers[:6])
    steps = format_count(sum(attempt.lost_steps for attempt in losers), "step")
    share = f" (goodput {percent(facts.goodput)})" if facts.goodput is not None else ""
    text = (
        f"{steps} of attempt{'s' if len(losers) > 1 else ''} {which} were lost, about "
        f"{span(seconds)} of {span(facts.seconds)} on your nodes{share}, since the last checkpoint "
        "was older: save more often."
    )
    return Advice("lost-work", "warning", text, train_config(facts, **_frequent_saves(facts)))


def _lost_seconds(attempt: AttemptFacts) -> float:
    steps = (attempt.last_step or 0) - (attempt.first_step or 0)
    return attempt.seconds * min(attempt.lost_steps / steps, 1.0) if steps > 0 else 0.0


def too_short(facts: RunFacts) -> Advice | None:
    """Explain why there is no advice on the use of resources."""
    used = facts.used
    if used.source == "" or facts.mixed or not facts.ended:
        return None
    text = f"It was measured for {span(used.seconds)}, which is too short to judge its use of resources."
    return Advice("short", "note", text)


def _failed(facts: RunFacts) -> bool:
    """Return whether the run failed; ranks that end in a cancelled or requeued run do not count."""
    return facts.state in FAILED or (facts.state == "unknown" and facts.error is not None)


def _frequent_saves(facts: RunFacts) -> dict[str, int | str]:
    """Return settings that save twice as often: half of the steps between checkpoints, or of those lost."""
    lost = max(attempt.lost_steps for attempt in facts.attempts)
    steps = min(lost, integer_setting(facts, "checkpoint_every_steps") or lost)
    if steps >= 4:
        return {"checkpoint_every_steps": round_down(steps // 2)}
    seconds = time_setting(facts, "checkpoint_every_time") or 2 * SAVE_TIME
    return {"checkpoint_every_time": short_time(min(SAVE_TIME, seconds // 2))}


def _logs(facts: RunFacts) -> str:
    if facts.kind == "run":
        return f"allranks logs --errors {facts.id}"
    return ""
