"""Advice on how the run went: its end, its time limit, what was lost between its attempts."""

from __future__ import annotations

from allranks.report.advice.base import Advice, amount, ask, percent, span, time_to_ask
from allranks.report.model import Facts, Life

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
GPU_MEMORY_OUT = ("CUDA out of memory", "HIP out of memory", "OutOfMemoryError")


def failure(facts: Facts) -> Advice | None:
    """What ended the run, when something did."""
    if not _failed(facts):
        return None
    after = f" after {span(facts.seconds)}" if facts.seconds else ""
    early = facts.seconds < EARLY and not facts.step
    when = f"It failed{after}, before its first step" if early else f"It failed{after}"
    error = facts.error
    if error is None:
        code = f" with exit code {facts.exit_code}" if facts.exit_code else ""
        return Advice("failed", "error", f"{when}{code}.", _logs(facts))
    where = f" on {error.host}" if error.host else ""
    how = (
        f"was killed by {error.signal}"
        if error.signal
        else f"ended with exit code {error.exit_code}"
    )
    last = (error.traceback.strip().splitlines() or [""])[-1].strip()
    what = f": {last[:200]}" if last else "."
    return Advice("failed", "error", f"{when}. Rank {error.rank}{where} {how}{what}", _logs(facts))


def gpu_memory_out(facts: Facts) -> Advice | None:
    """A GPU whose memory was full."""
    if facts.error is None or not _failed(facts):
        return None
    if not any(sign in facts.error.traceback for sign in GPU_MEMORY_OUT):
        return None
    text = (
        "The GPU's memory was full. Make the batch of each rank smaller (with accumulated gradients the "
        "step stays the same), recompute activations, or shard the model (strategy='fsdp')."
    )
    how = "TrainConfig(accumulate=2, activation_checkpointing=True)" if facts.settings else ""
    return Advice("gpu-memory-out", "error", text, how)


def go_on(facts: Facts) -> Advice | None:
    """A run that saved itself and left before its training had ended."""
    if facts.kind != "run" or facts.state != "interrupted":
        return None
    how_far = f" at step {facts.step:,}" if facts.step else ""
    whole = f" of {facts.total_steps:,}" if facts.step and facts.total_steps else ""
    text = f"It saved itself and left{how_far}{whole}; it can go on from there."
    return Advice("go-on", "note", text, f"allranks resume {facts.id}")


def time_limit(facts: Facts) -> Advice | None:
    """A time limit that was too long, or nearly too short, or too short."""
    limit = facts.asked.time_limit
    if not limit or not facts.ended:
        return None
    if facts.state == "timeout":
        return _timed_out(facts, limit)
    if facts.state != "completed" or len(facts.attempts) > 1:
        return None
    if facts.seconds >= TIME_TIGHT * limit:
        text = (
            f"It took {span(facts.seconds)} of its time limit of {span(limit)}, "
            f"{percent(facts.seconds / limit)}: the next one may not make it."
        )
        more = time_to_ask(facts.seconds * TIME_HEADROOM)
        return Advice("time-tight", "warning", text, ask(facts, "time", more))
    enough = time_to_ask(max(facts.seconds * TIME_HEADROOM, facts.seconds + 600))
    if limit < TIME_LEAST or enough > TIME_WASTE * limit:
        return None
    text = (
        f"You asked for {span(limit)} and it took {span(facts.seconds)}: a job that asks for less "
        "time often starts sooner."
    )
    return Advice("time", "note", text, ask(facts, "time", enough))


def _timed_out(facts: Facts, limit: int) -> Advice:
    text = f"It ran into its time limit of {span(limit)}"
    if facts.kind == "job":
        more = ask(facts, "time", time_to_ask(limit * 2))
        return Advice("time-out", "error", f"{text}: ask for more.", more)
    if ("requeue", "True") in [(name, value) for name, value, _ in facts.values_asked]:
        text += " before it had saved and left; go on from its last checkpoint."
        return Advice("time-out", "error", text, f"allranks resume {facts.id}")
    text += ". With --requeue it saves before the limit and goes on by itself."
    return Advice("time-out", "error", text, "--requeue")


def lost_work(facts: Facts) -> Advice | None:
    """Steps that were done twice, since the checkpoint before them was old."""
    losers = [life for life in facts.attempts if life.lost_steps > 0]
    seconds = sum(_lost_seconds(life) for life in losers)
    if seconds < LOST_LEAST or seconds < LOST * facts.seconds:
        return None
    which = ", ".join(str(life.number) for life in losers[:6])
    steps = amount(sum(life.lost_steps for life in losers), "step")
    share = f" (goodput {percent(facts.goodput)})" if facts.goodput is not None else ""
    text = (
        f"{steps} of attempt{'s' if len(losers) > 1 else ''} {which} were lost, about "
        f"{span(seconds)} of {span(facts.seconds)} on your nodes{share}, since the last checkpoint "
        "was older: save more often."
    )
    every = _save_every(facts)
    how = f"checkpoint_every_steps={every}" if every else "checkpoint_every_time='15m'"
    return Advice("lost-work", "warning", text, f"TrainConfig({how})" if facts.settings else "")


def _lost_seconds(life: Life) -> float:
    steps = (life.last_step or 0) - (life.first_step or 0)
    return life.seconds * min(life.lost_steps / steps, 1.0) if steps > 0 else 0.0


def too_short(facts: Facts) -> Advice | None:
    """Why there is no advice on how it used what it had."""
    used = facts.used
    if used.source == "" or not facts.ended:
        return None
    text = f"It was measured for {span(used.seconds)}, which is too short to judge how it used what it had."
    return Advice("short", "note", text)


def _failed(facts: Facts) -> bool:
    """Not of a run that was cancelled, saved itself or goes on: ranks that end then are no news."""
    return facts.state in FAILED or (facts.state == "unknown" and facts.error is not None)


def _save_every(facts: Facts) -> int | None:
    """Half of the steps that an attempt lost at most, rounded down to a round number."""
    most = max((life.lost_steps for life in facts.attempts), default=0)
    if most < 4:
        return None
    half = most // 2
    digits = int(10 ** (len(str(half)) - 1))
    return max(half // digits * digits, 1)


def _logs(facts: Facts) -> str:
    if facts.kind == "run":
        return f"allranks logs --errors {facts.id}"
    return ""
