"""The verdict of a report in one sentence, and its tiles, the same for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.core.formatting import amount, percent, span, step_time, three, value
from allranks.observe.report.advice import Advice, is_measured_enough
from allranks.observe.report.advice.base import format_count, join_names
from allranks.observe.report.model import RunFacts

GOOD, FAIR, BAD, PLAIN = "good", "fair", "bad", "plain"
_ENDS = {
    "completed": "It completed",
    "failed": "It failed",
    "node failed": "It lost a node",
    "timeout": "It ran out of time",
    "out of memory": "It ran out of memory",
    "preempted": "It was preempted",
    "cancelled": "It was cancelled",
    "interrupted": "It saved a checkpoint and exited",
    "running": "It is running",
    "pending": "It is waiting to start",
    "requeued": "It is waiting to start again",
    "unknown": "How it ended is unknown",
}
"""How a verdict begins."""
_STATES = {
    "completed": GOOD,
    "running": PLAIN,
    "pending": PLAIN,
    "interrupted": FAIR,
    "cancelled": FAIR,
}
_BADLY = ("failed", "out of memory", "node failed", "timeout")


EXACT_TITLE = "Or exactly as it was planned:"
"""Between two ways to run it again."""


@dataclass(frozen=True)
class Tile:
    """One key figure at the top of the report."""

    title: str
    value: str
    about: str = ""
    mood: str = PLAIN
    """Whether it is good, fair, bad, or none of these."""


def verdict(facts: RunFacts, advice: Sequence[Advice]) -> str:
    """Return the report in one sentence."""
    severities = [each.severity for each in suggested_changes(advice)]
    state = "It was killed" if facts.killed else _ENDS.get(facts.state, f"It is {facts.state}")
    if "error" in severities:
        but = ", but something went wrong" if facts.state == "completed" else ""
        return f"{state}{but}: look at the advice first."
    if "warning" in severities:
        wanted = format_count(severities.count("warning"), "change")
        return f"{state}; {wanted} would make it cheaper or faster."
    if not is_measured_enough(facts):
        return f"{state}; {_not_judged(facts)}."
    if facts.requested.has_gpus and facts.used.gpu_use is None:
        return f"{state}; how its GPUs were used is unknown."
    much = "little" if severities else "nothing"
    return f"{state}; from what was measured there is {much} to change."


def array_summary(facts: RunFacts) -> str:
    """Describe the task of a job array and the tasks that did not complete; empty without an array."""
    if not facts.tasks:
        return ""
    count = format_count(len(facts.tasks), "task")
    parts = [f"Task {facts.task} of a job array, {count} so far" if facts.task else count]
    for state in dict.fromkeys(facts.tasks.values()):
        if state != "completed":
            parts.append(
                f"{state}: {join_names([t for t, s in facts.tasks.items() if s == state], 6)}"
            )
    other = _other_task(facts)
    return "; ".join(parts) + (
        f". Of {'another' if facts.task else 'one'}: {other}" if other else "."
    )


def _other_task(facts: RunFacts) -> str:
    """Return the command for the report of a failed task, else of any other."""
    others = [task for task in facts.tasks if task != facts.task]
    bad = [task for task in others if facts.tasks[task] in _BADLY]
    for task in [*bad, *others][:1]:
        if facts.kind == "run":
            return f"allranks report {facts.id} --task {task}"
        return f"allranks report --job {facts.job_ids[0]}_{task}"
    return ""


def _not_judged(facts: RunFacts) -> str:
    """Explain why the use of resources cannot be judged."""
    if facts.mixed:
        return "see the reports of its parts for their use of resources"
    if not facts.ended:
        return "it is too early to judge its use of resources"
    if not facts.used.source:
        return "how it used its resources is unknown"
    return "it was too short to judge its use of resources"


def suggested_changes(advice: Sequence[Advice]) -> list[Advice]:
    """Return the advice that suggests a change, without the note that nothing could be judged."""
    return [each for each in advice if each.id != "short"]


def tiles(facts: RunFacts) -> list[Tile]:
    """Return the known tiles, the most important first."""
    found = [_result(facts), *_progress(facts), *_speed(facts), *_machine(facts)]
    if facts.goodput is not None and len(facts.attempts) > 1:
        mood = GOOD if facts.goodput >= 0.9 else FAIR if facts.goodput >= 0.75 else BAD
        about = f"of {span(facts.seconds)} moved the model forward"
        found.append(Tile("Goodput", percent(facts.goodput), about, mood))
    if facts.waited is not None:
        found.append(Tile("In the queue", span(facts.waited)))
    return found


def _result(facts: RunFacts) -> Tile:
    mood = _STATES.get(facts.state, BAD if facts.ended and facts.state != "unknown" else PLAIN)
    lives = f", {format_count(len(facts.attempts), 'attempt')}" if len(facts.attempts) > 1 else ""
    code = f", exit code {facts.exit_code}" if facts.exit_code else ""
    least = " or more" if facts.killed else ""
    about = (f"after {span(facts.seconds)}{least}" if facts.seconds else "") + lives + code
    return Tile("Result", facts.state, about.lstrip(", "), mood)


def _progress(facts: RunFacts) -> list[Tile]:
    found = []
    if facts.step is not None:
        whole = f"of {facts.total_steps:,}" if facts.total_steps else ""
        each = f"{step_time(facts.step_seconds)} each" if facts.step_seconds else ""
        about = ", ".join(words for words in (whole, each) if words)
        found.append(Tile("Steps", f"{facts.step:,}", about))
    for name, title in (("val_loss", "Validation loss"), ("train_loss", "Training loss")):
        if name in facts.values:
            best = facts.best.get(name)
            about = f"best {value(best)}" if best is not None else ""
            mood = BAD if name in facts.diverged else PLAIN
            found.append(Tile(title, value(facts.values[name]), about, mood))
    return found


def _speed(facts: RunFacts) -> list[Tile]:
    found = []
    for name, word in (("tokens_per_second", "tokens"), ("samples_per_second", "samples")):
        if name in facts.typical:
            found.append(
                Tile(
                    "Throughput",
                    f"{amount(facts.typical[name])} {word}/s",
                    _per_rank(facts, name, word),
                )
            )
            break
    if "mfu" in facts.typical:
        mfu = facts.typical["mfu"]
        mood = GOOD if mfu >= 0.4 else FAIR if mfu >= 0.25 else BAD
        found.append(Tile("MFU", percent(mfu), "of what the GPUs can compute", mood))
    return found


def _per_rank(facts: RunFacts, name: str, word: str) -> str:
    ranks = facts.requested.ranks or 1
    return f"{amount(facts.typical[name] / ranks)} {word}/s per rank" if ranks > 1 else ""


def _machine(facts: RunFacts) -> list[Tile]:
    found = []
    use = facts.used.gpu_use
    if use is not None:
        mood = GOOD if use >= 0.8 else FAIR if use >= 0.5 else BAD
        count = len([gpu for gpu in facts.used.gpus if gpu.use is not None])
        found.append(Tile("GPU use", percent(use), f"mean over {format_count(count, 'GPU')}", mood))
    if facts.used.energy:
        text = format_energy(facts.used.energy)
        found.append(
            Tile("Energy", text, "of the GPUs" if facts.used.gpus else "as Slurm measured it")
        )
    return found


def format_energy(joules: float) -> str:
    """Format joules: ``74 Wh``, ``5.2 kWh``, ``1.03 MWh``."""
    hours = joules / 3600
    for unit, name in ((1e6, "MWh"), (1e3, "kWh")):
        if hours >= unit:
            return f"{three(hours / unit)} {name}"
    return f"{hours:.0f} Wh"
