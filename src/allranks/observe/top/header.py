"""The upper part of the screen: the run, its state, progress, loss and speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.text import Text

from allranks.cluster.slurm.job_states import JobState
from allranks.core.formatting import amount, clean, clock, span, step_time, value
from allranks.observe.top.text_layout import (
    COLOURS,
    Glyphs,
    LinePiece,
    bar,
    cut,
    fit,
    percent,
    sparkline,
    stacked_bar,
    wrap,
)
from allranks.observe.view.model import TIMINGS, RunView
from allranks.schedulers.run_state import RunStatus, elapsed

STATE_COLOURS = {
    JobState.RUNNING: "green",
    JobState.COMPLETING: "green",
    JobState.COMPLETED: "green",
    JobState.PENDING: "yellow",
    JobState.REQUEUED: "yellow",
    JobState.SUSPENDED: "yellow",
    JobState.INTERRUPTED: "yellow",
    JobState.UNKNOWN: "yellow",
}
"""All other states are failures: red."""

_SHOWN_ELSEWHERE = {
    *("train_loss", "val_loss", "samples_per_second", "tokens_per_second", "mfu"),
    *("flops_per_second", *TIMINGS),
}
"""Metrics that are shown elsewhere."""
_PHASE_NAMES = {"checkpoint": "saving"}


def title(run_view: RunView, width: int, glyphs: Glyphs) -> Text:
    """Return the run, its state, its job and its elapsed time."""
    status = run_view.status
    state = status.state.value
    task = f"task {clean(run_view.task)}" if run_view.task else ""
    room = max(width - len(state) - len(task) - 4, 8)
    name = cut(Text(clean(status.run.id), "bold"), room, glyphs.more)
    seconds = elapsed(status, run_view.time)
    return fit(
        [
            LinePiece(name),
            LinePiece.of(task, "bold"),
            LinePiece.of(state, f"bold {_colour(status)}"),
            LinePiece.of(f"job {status.job_id}" if status.job_id else "", rank=2),
            LinePiece.of("" if seconds is None else clock(seconds), rank=1),
            LinePiece.of(f"attempt {status.attempts}" if status.attempts else "", rank=3),
            LinePiece.of(clean(status.nodes), "dim", rank=4),
        ],
        width,
        glyphs.more,
    )


def _colour(status: RunStatus) -> str:
    return STATE_COLOURS.get(status.state, "red")


def notices(run_view: RunView, width: int, glyphs: Glyphs) -> list[Text]:
    """Return what must be read before any number: why it waits, how it ended, which rank is slow."""
    status = run_view.status
    lines: list[Text] = []
    if text := _state_text(status):
        lines += wrap(clean(text), width, 2, _colour(status), glyphs.more)
    for text, colour in _other_tasks(run_view):
        lines.append(cut(Text(text, colour), width, glyphs.more))
    if status.state.ended or run_view.progress.share == 1:
        return lines
    if (silent := run_view.progress.stalled_seconds) is not None:
        text = f"no step for {clock(silent)}: the training is stalled"
        lines.append(cut(Text(text, "bold red"), width, glyphs.more))
    slow = [rank for rank in run_view.ranks if rank.straggler]
    if slow:
        worst = max(slow, key=lambda rank: rank.behind or 0.0)
        others = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
        where = f" on {clean(worst.host)}" if worst.host else ""
        by = f": its own work takes {percent(worst.behind)} longer" if worst.behind else ""
        text = f"straggler: the others wait for rank {worst.rank}{where}{others}{by}"
        lines.append(cut(Text(text, "bold red"), width, glyphs.more))
    return lines


def _other_tasks(run_view: RunView) -> Iterator[tuple[str, str]]:
    """Yield the other tasks of the array that failed; after the end of this one also those that run."""
    failed = [task for task in run_view.failed_tasks if task != run_view.task]
    running = [task for task in run_view.running_tasks if task != run_view.task]
    if failed:
        yield _task_hint(failed, "did not finish", run_view), "red"
    if running and run_view.status.state.ended:
        yield _task_hint(running, "runs" if len(running) == 1 else "run", run_view), "green"


def _task_hint(tasks: Sequence[str], what: str, run_view: RunView) -> str:
    """Return the state of the tasks, and the command that shows the first of them."""
    names, job = [clean(task) for task in tasks], run_view.status.job_id
    look = f"{job}_{names[0]}" if job else f"--task {names[0]} {clean(run_view.status.run.id)}"
    some = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return f"task{'s' if len(names) > 1 else ''} {some} {what}: allranks top {look}"


def progress(run_view: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """Return the bar, the step and the epoch."""
    now = run_view.progress
    if now.step is None:
        return None
    total = f"/{now.total_steps}" if now.total_steps else ""
    pieces = [
        LinePiece.of(f"step {now.step}{total}"),
        LinePiece.of(percent(now.share), "bold", rank=1),
        LinePiece.of(_epoch(now.epoch, now.epochs), rank=2),
    ]
    room = min(width - fit(pieces, width).cell_len - 2, 60)
    if now.share is None or room < 6:
        return fit(pieces, width, glyphs.more)
    drawn = bar(now.share, room, "green", glyphs)
    return fit([LinePiece(drawn, rank=3), *pieces], width, glyphs.more)


def times(run_view: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """Return the remaining time, and whether the time limit suffices."""
    now, pieces = run_view.progress, []
    if run_view.status.state.ended:
        return None
    if now.eta_seconds is not None:
        pieces.append(LinePiece.of(f"{clock(now.eta_seconds)} to go"))
    if now.deadline is not None:
        pieces.append(_time_limit(now.deadline - run_view.time, now.eta_seconds))
    if now.saved_step is not None:
        pieces.append(LinePiece.of(f"saved at step {now.saved_step}", rank=1))
    return fit(pieces, width, glyphs.more) if pieces else None


def _time_limit(left: float, needed: float | None) -> LinePiece:
    if left < 0:
        return LinePiece.of(f"its time limit passed {span(-left)} ago", "yellow")
    if needed is None:
        return LinePiece.of(f"time limit in {clock(left)}")
    short = needed > left
    verdict = "before the end" if short else "enough"
    return LinePiece.of(f"time limit in {clock(left)}, {verdict}", "bold red" if short else "")


def loss(run_view: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """Return the loss with its curve, the validation loss and the learning rate."""
    values = run_view.values
    train = values.get("train_loss", run_view.loss[-1][1] if run_view.loss else None)
    val = values.get("val_loss", run_view.val_loss[-1][1] if run_view.val_loss else None)
    rates = [number for name, number in values.items() if _is_rate(name)]
    if train is None and val is None and not rates:
        return None
    before = LinePiece.of("" if train is None else f"loss {value(train)}", "bold")
    after = [
        LinePiece.of("" if val is None else f"val loss {value(val)}", rank=1),
        LinePiece.of(f"lr {rates[0]:.3g}" if rates else "", rank=2),
    ]
    room = width - fit([before, *after], width).cell_len - 2
    curve = sparkline(run_view.loss, room, glyphs) if room >= 6 else ""
    return fit([before, LinePiece.of(curve, "cyan", rank=3), *after], width, glyphs.more)


def speed(run_view: RunView, width: int, glyphs: Glyphs) -> Text | None:
    """Return samples, tokens, MFU, then the user's own metrics as far as they fit."""
    values = run_view.values
    pieces = [
        LinePiece.of(f"{amount(values[name])} {unit}", rank=rank)
        for name, unit, rank in (
            ("samples_per_second", "samples/s", 0),
            ("tokens_per_second", "tokens/s", 1),
        )
        if name in values
    ]
    if "mfu" in values:
        pieces.append(LinePiece.of(f"MFU {percent(values['mfu'])}", rank=2))
    own = [
        LinePiece.of(f"{name} {value(number)}", rank=3) for name, number in _user_metrics(run_view)
    ]
    return fit([*pieces, *own], width, glyphs.more) if pieces or own else None


def step(run_view: RunView, width: int, glyphs: Glyphs) -> list[Text]:
    """Return the phases of a step as a bar, and its legend."""
    parts = {name: seconds for name, seconds in run_view.phases.items() if seconds > 0}
    whole = sum(parts.values())
    if not whole:
        return []
    label = f"a step {step_time(whole).replace('µ', glyphs.micro)}"
    line = Text(f"{label}  ")
    line.append_text(stacked_bar(parts, max(width - len(label) - 2, 1)))
    order = sorted(parts, key=lambda name: -parts[name])
    legend = [
        LinePiece.of(
            f"{_PHASE_NAMES.get(name, name)} {percent(seconds / whole)}",
            COLOURS.get(name, ""),
            rank=order.index(name),
        )
        for name, seconds in parts.items()
        if seconds / whole >= 0.005
    ]
    return [cut(line, width, ""), fit(legend, width, glyphs.more)]


def _user_metrics(run_view: RunView) -> Iterator[tuple[str, float]]:
    """Yield the metrics of the training that are not shown elsewhere."""
    for name, number in run_view.values.items():
        if name not in _SHOWN_ELSEWHERE and not _is_rate(name):
            yield clean(name), number


def _is_rate(name: str) -> bool:
    """Return whether it is a learning rate: the only one, or one of several groups."""
    return name == "lr" or name.startswith("lr_")


def _epoch(epoch: int | None, epochs: int | None) -> str:
    if epoch is None:
        return ""
    return f"epoch {epoch}/{epochs}" if epochs else f"epoch {epoch}"


def _state_text(status: RunStatus) -> str:
    """Return why it waits or how it ended; empty while it runs."""
    if status.state is JobState.PENDING:
        text = f"waiting: {status.why or 'no reason given yet'}"
        if status.expected_start:
            text += f"; expected to start at {_moment(status.expected_start)}"
        return text
    if status.state.ended:
        when = f" at {_moment(status.end)}" if status.end else ""
        code = f", exit code {status.exit_code}" if status.exit_code else ""
        return f"{status.state.value}{when}{code}" + (f": {status.why}" if status.why else "")
    if status.state is JobState.UNKNOWN and status.job_id:
        return status.why or "Slurm no longer knows the job"
    return status.why


def _moment(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
