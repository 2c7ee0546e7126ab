"""Check whether a signal reaches every rank through batch script, srun, launcher and container.

A job of one minute whose ranks wait and record what arrives: the signal that Slurm sends before the time
limit, then TERM by scancel. On one machine the same through ``allranks run``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allranks.cluster.slurm.jobs import cancel, job_status
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.errors import UsageError
from allranks.job.plan import Plan
from allranks.observe.check import CHECK_FILE
from allranks.runs.atomic_files import write_json
from allranks.runs.run_folder import Run

DEFAULT = "USR1@20"
MODULE = "allranks.runtime.preemption.signal_probe"
Say = Callable[[str], None]

_LOOK = 0.5
_STRAGGLERS = 5.0
"""Seconds from the first rank that has a signal to the last one."""


@dataclass
class RankSignals:
    """The signals that one rank recorded."""

    rank: int
    host: str = ""
    ready: float | None = None
    """When it began to listen."""
    end: float | None = None
    """The end of the job, as far as the rank knows it."""
    arrived: dict[str, float] = field(default_factory=dict)
    """Signal → when it came, in seconds since 1970."""
    workers: int | None = None
    """Of two processes beside the rank, those that lived on."""

    def has(self, name: str) -> bool:
        return name in self.arrived


@dataclass
class SignalCheckResult:
    """The result of a signal check."""

    where: str
    """``job 123`` or ``this machine``."""
    launcher: str
    signals: list[str]
    """Those that were to arrive, in this order."""
    ranks: list[RankSignals]

    @property
    def missing(self) -> dict[str, list[int]]:
        """Map each signal to the ranks that did not receive it."""
        absent = {
            name: [each.rank for each in self.ranks if not each.has(name)] for name in self.signals
        }
        return {name: ranks for name, ranks in absent.items() if ranks}

    def late(self, name: str) -> list[int]:
        """Return the ranks that started to listen after others had received the signal."""
        first = min((each.arrived[name] for each in self.ranks if each.has(name)), default=None)
        missing = [each for each in self.ranks if not each.has(name)]
        return [each.rank for each in missing if first and each.ready and each.ready > first]

    @property
    def lost_workers(self) -> list[int]:
        """Return the ranks whose workers died of a signal that was not meant for them."""
        return [each.rank for each in self.ranks if each.workers not in (2, None)]

    @property
    def ok(self) -> bool:
        return not self.missing and not self.lost_workers

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def early_signal(text: str) -> str:
    """Return the signal's name: ``B:USR1@60`` → ``SIGUSR1``."""
    word = text.rpartition(":")[2].partition("@")[0].upper()
    try:
        return (
            signal.Signals(int(word)).name if word.isdigit() else signal.Signals[_full(word)].name
        )
    except (KeyError, ValueError):
        raise UsageError(f"'{text}': there is no signal {word}. Write USR1@20.") from None


def _full(word: str) -> str:
    return word if word.startswith("SIG") else f"SIG{word}"


def check_on_slurm(plan: Plan, run: Run, job_id: str, say: Say) -> SignalCheckResult:
    """Watch a submitted job of the probe, and cancel it however this ends."""
    watch = _CheckWatch(
        run, plan.shape.world_size if plan.launcher.supervised else plan.shape.nodes
    )
    early = early_signal(plan.job.signal or DEFAULT)
    try:
        _until_ready(watch, job_id, say)
        _until_all(watch, early, lambda: say(_waiting(watch, early)), lambda: _ended(job_id))
        cancel(job_id, "TERM")
        _until_all(
            watch, "SIGTERM", lambda: say("TERM was sent by scancel"), lambda: _ended(job_id)
        )
        _until(lambda: all(each.workers is not None for each in watch.ranks()), _STRAGGLERS)
    finally:
        cancel(job_id)
    return SignalCheckResult(
        f"job {job_id}", plan.launcher.name, list(dict.fromkeys([early, "SIGTERM"])), watch.ranks()
    )


def check_locally(
    words: Sequence[str], launcher: str, size: int, root: Path, say: Say
) -> SignalCheckResult:
    """Start the probe with ``allranks run`` and signal it."""
    command = [sys.executable, "-m", "allranks", "run", "--runs", str(root), *words, "-m", MODULE]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        watch = _CheckWatch(root, size)
        say("starting the ranks")
        if not _until(lambda: len(watch.ranks(known=True)) == size, 120, process.poll):
            raise UsageError(f"The ranks did not start:\n{process.communicate()[1].strip()}")
        for name in ("SIGUSR1", "SIGTERM"):
            process.send_signal(signal.Signals[name])
            _until_all(
                watch, name, lambda: say("signals were sent"), lambda: process.poll() is not None
            )
        process.communicate(timeout=60)
    finally:
        process.kill()
    return SignalCheckResult("this machine", launcher, ["SIGUSR1", "SIGTERM"], watch.ranks())


class _CheckWatch:
    """Reads what the ranks have recorded so far."""

    def __init__(self, run: Run | Path, size: int) -> None:
        self._root = run if isinstance(run, Path) else run.path
        self.size = size

    def ranks(self, known: bool = False) -> list[RankSignals]:
        """Return every rank, including those that have not written yet; or only those ``known``."""
        files = sorted(self._root.glob("**/attempts/1/signals/rank-*.jsonl"))
        found = {int(file.stem[5:]): file for file in files}
        numbers = found if known else range(max(self.size, max(found, default=-1) + 1))
        return [_read(number, found.get(number)) for number in numbers]


def _read(rank: int, file: Path | None) -> RankSignals:
    made = RankSignals(rank)
    for line in file.read_text().splitlines() if file is not None else ():
        facts = json.loads(line) if line.endswith("}") else {}
        made.host = facts.get("host", made.host)
        made.ready = facts.get("ready", made.ready)
        made.end = facts.get("end", made.end)
        made.workers = facts.get("workers", made.workers)
        if "signal" in facts:
            made.arrived.setdefault(facts["signal"], facts["time"])
    return made


def _until_ready(watch: _CheckWatch, job_id: str, say: Say) -> None:
    while len(watch.ranks(known=True)) < watch.size:
        status = job_status(job_id)[job_id]
        if status.state.ended:
            return
        why = pending_reason_text(status.reason) if not status.state.active else ""
        say(f"job {job_id} is {status.state.value.lower()}{f': {why}' if why else ''}")
        time.sleep(2)


def _until_all(
    watch: _CheckWatch, name: str, tell: Callable[[], None], ended: Callable[[], bool]
) -> None:
    """Wait until every rank has the signal, the others have had it for a while, or the job ended."""
    first = None
    while not all(each.has(name) for each in watch.ranks()):
        if any(each.has(name) for each in watch.ranks()):
            first = first or time.monotonic()
        late = first is not None and time.monotonic() - first > _STRAGGLERS
        if late or ended():
            return
        tell()
        time.sleep(_LOOK)


def _waiting(watch: _CheckWatch, name: str) -> str:
    ends = [each.end for each in watch.ranks() if each.end is not None]
    left = f", {max(ends) - time.time():.0f} s to the end of the job" if ends else ""
    return f"{watch.size} ranks wait for {name}{left}"


def _ended(job_id: str) -> bool:
    return job_status(job_id)[job_id].state.ended


def _until(
    true: Callable[[], bool], seconds: float, over: Callable[[], object] = lambda: None
) -> bool:
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit or over() is not None:
            return true()
        time.sleep(_LOOK)
    return True


def save_result(found: SignalCheckResult, run: Run) -> None:
    """Write the result beside the logs of the check's job, for the views of that run."""
    write_json(
        run.path / CHECK_FILE, {"check": "signal", **found.record(), "advice": result_advice(found)}
    )


def result_table(found: SignalCheckResult) -> list[str]:
    """Return a header and a row for each rank."""
    head = ["rank", "host", "end of the job", *found.signals, "workers"]
    rows = [head, *([*_row(found, each)] for each in found.ranks)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(found: SignalCheckResult, rank: RankSignals) -> list[str]:
    known = "-" if not rank.host else "known" if rank.end is not None else "not known"
    workers = "-" if rank.workers is None else f"{rank.workers} of 2 alive"
    return [str(rank.rank), rank.host or "-", known, *(_arrival(rank, s) for s in found.signals),
            workers]  # fmt: skip


def _arrival(rank: RankSignals, name: str) -> str:
    when = rank.arrived.get(name)
    if when is None:
        return "did not arrive"
    return "arrived" if rank.end is None else f"{rank.end - when:.0f} s before the end"


def result_advice(found: SignalCheckResult) -> list[str]:
    """Return the verdict, then what to type for whatever is missing."""
    if found.ok:
        ranks = "the rank" if len(found.ranks) == 1 else f"all {len(found.ranks)} ranks"
        return [f"Every signal reached {ranks} in {found.where}."]
    silent = [each.rank for each in found.ranks if not each.host]
    if silent:
        return [
            f"{_ranks(silent)} did not start: look at `allranks logs {found.where.split()[-1]}`."
        ]
    lines = [f"{name} did not reach {_ranks(ranks)}." for name, ranks in found.missing.items()]
    if found.missing:
        lines += _suggestions(found)
    if found.lost_workers:
        lines.append(
            f"Processes beside {_ranks(found.lost_workers)} died of a signal: loader workers would."
        )
    return lines


def _suggestions(found: SignalCheckResult) -> list[str]:
    late = sorted({rank for name in found.missing for rank in found.late(name)})
    if late:
        return [
            f"{_ranks(late).capitalize()} started after it was sent. Give the job more time: --time 3m."
        ]
    ways = []
    if found.launcher == "mpirun":
        ways.append("mpirun runs in the batch script, which gets no signal without B: "
                    "--signal B:USR1@120, or --launcher srun.")  # fmt: skip
    if any(each.end is not None for each in found.ranks):
        ways.append(
            "The ranks know when the job ends, and the Trainer and allranks.deadline() leave in time "
            "without a signal; preemption is what they would not hear of."
        )
    else:
        ways.append(
            "Give the ranks the end of the job: export ALLRANKS_DEADLINE=$SLURM_JOB_END_TIME."
        )
    ways.append("Or try another launcher: allranks check --signal --launcher srun.")
    return ways


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
