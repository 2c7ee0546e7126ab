"""What a check found, for people: a row for each rank, and what to do about what did not work."""

from __future__ import annotations

from allranks.observe.check import KEPT
from allranks.observe.check.signal_check import RankSignals, SignalCheckResult
from allranks.runs.atomic_files import write_json
from allranks.runs.run import Run


def keep(found: SignalCheckResult, run: Run) -> None:
    """The outcome beside the logs of the job that was the check, for the views of that run."""
    write_json(run.path / KEPT, {"check": "signal", **found.record(), "advice": advice(found)})


def table(found: SignalCheckResult) -> list[str]:
    """A header and a row for each rank."""
    head = ["rank", "host", "end of the job", *found.signals, "workers"]
    rows = [head, *([*_row(found, each)] for each in found.ranks)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(found: SignalCheckResult, rank: RankSignals) -> list[str]:
    known = "-" if not rank.host else "known" if rank.end is not None else "not known"
    workers = "-" if rank.workers is None else f"{rank.workers} of 2 live on"
    return [str(rank.rank), rank.host or "-", known, *(_arrival(rank, s) for s in found.signals),
            workers]  # fmt: skip


def _arrival(rank: RankSignals, name: str) -> str:
    when = rank.arrived.get(name)
    if when is None:
        return "did not arrive"
    return "arrived" if rank.end is None else f"{rank.end - when:.0f} s before the end"


def advice(found: SignalCheckResult) -> list[str]:
    """The verdict, then what to type for whatever is missing."""
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
        lines += _ways(found)
    if found.lost_workers:
        lines.append(
            f"Processes beside {_ranks(found.lost_workers)} died of a signal: loader workers would."
        )
    return lines


def _ways(found: SignalCheckResult) -> list[str]:
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
            "Tell the ranks when the job ends: export ALLRANKS_DEADLINE=$SLURM_JOB_END_TIME."
        )
    ways.append("Or try another launcher: allranks check --signal --launcher srun.")
    return ways


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
