"""The resources that a job used: from accounting, or without it, what slurmctld knows of its request.

Accounting writes most numbers at the end of each step, so a running job has few of them. Fields that
an old sacct does not know are left out, and a number that cannot be read is unknown, never 0.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace

from allranks.cluster.slurm.commands import query
from allranks.cluster.slurm.job_states import parse_state
from allranks.cluster.slurm.job_status import code_and_signal, moment, shell_code, time_limit
from allranks.cluster.slurm.job_usage import (
    Step,
    Usage,
    count,
    gpu_type,
    gpus,
    joined,
    size,
    spent_seconds,
    tres,
)
from allranks.cluster.slurm.jobs import checked_ids
from allranks.cluster.slurm.scontrol_usage import controller_usage
from allranks.errors import AllranksError, MissingDependencyError, SlurmError

Row = Mapping[str, str]
FIELDS = (
    "JobID", "JobIDRaw", "JobName", "User", "Account", "Partition", "State", "ExitCode", "Submit", "Start",
    "End", "ElapsedRaw", "Timelimit", "NodeList", "NNodes", "NTasks", "NCPUS", "ReqTRES", "AllocTRES",
    "TotalCPU", "MaxRSS", "MaxRSSNode", "ConsumedEnergyRaw",
)  # fmt: skip
NEWER = ("TRESUsageInTot", "SubmitLine", "WorkDir")
"""Fields that came with 18.08 to 21.08. A command may hold line breaks, so it must not be the last."""
_MARK = "\x1f"  # between fields: names and command lines may hold every printable letter
NEXT_TO_NOTHING, LONG = 0.01, 60.0
"""Mean CPUs over this many seconds: a job that computes has more, so the site does not count them."""
_OFF = ("accounting storage is disabled", "Accounting storage is disabled", "SlurmDBD")


def job_usage(
    job_id: str, *, env: Mapping[str, str] | None = None, timeout: float = 30
) -> Usage | None:
    """Return what the job requested, was allocated and used; None when Slurm does not know it (any more).

    ``12_3`` is one task of an array and ``12+1`` one part of a heterogeneous job; ``12`` is the whole.
    """
    (job,) = checked_ids(job_id)
    rows, silence = _rows(job, env, timeout)
    if silence and isinstance(silence.__cause__, subprocess.TimeoutExpired):
        raise silence  # a Slurm that hangs would let the next question wait as long
    found = [usage for usage in _usages(rows) if _is_asked(job, usage.job_id, rows)]
    try:
        known = {usage.job_id: usage for usage in controller_usage(job, env, timeout)}
    except AllranksError:
        if not found:
            raise
        known = {}  # accounting knows more; the controller may be down
    if not found and not known and silence:
        raise silence
    all_of_it = [_completed(usage, known.get(usage.job_id)) for usage in found] or [*known.values()]
    if not all_of_it:
        return None
    return all_of_it[0] if len(all_of_it) == 1 else joined(job, all_of_it)


def _rows(
    job: str, env: Mapping[str, str] | None, timeout: float
) -> tuple[list[Row], SlurmError | None]:
    """Return the rows of the job and its steps, or why accounting gave none."""
    whole = job.partition("+")[0]
    fields = (*FIELDS, *NEWER)
    try:
        try:
            return _sacct(whole, fields, env, timeout), None
        except SlurmError as error:
            if "Invalid field" not in str(error):
                raise
            return _sacct(whole, FIELDS, env, timeout), None
    except MissingDependencyError:
        return [], None  # scontrol is missing too, and says so
    except SlurmError as error:
        off = any(sign in str(error) for sign in _OFF)
        return [], None if off else error


def _sacct(
    job: str, fields: tuple[str, ...], env: Mapping[str, str] | None, timeout: float
) -> list[Row]:
    form = ["--noheader", "--parsable2", f"--delimiter={_MARK}", "--units=K", "--noconvert"]
    command = ["sacct", *form, "-j", job, "-o", ",".join(fields)]
    return list(_records(query(command, timeout, env), fields))


def _records(text: str, fields: tuple[str, ...]) -> Iterator[Row]:
    """Return the lines as rows; a command line with line breaks in it is joined again."""
    held = ""
    for line in text.split("\n"):
        held = f"{held}\n{line}" if held else line
        if held.count(_MARK) >= len(fields) - 1:
            yield dict(zip(fields, held.split(_MARK), strict=False))
            held = ""


def _usages(rows: list[Row]) -> Iterator[Usage]:
    steps: dict[str, list[Step]] = {}
    for row in rows:
        if "." in row["JobID"]:
            steps.setdefault(row["JobID"].partition(".")[0], []).append(_step(row))
    for row in rows:
        if "." not in row["JobID"]:
            yield _job(row, steps.get(row["JobID"], []))


def _is_asked(job: str, found: str, rows: list[Row]) -> bool:
    """Return whether a row is of the id itself, of a part of it, or of the task with that internal number."""
    if "[" in found:  # tasks of an array that never began
        return False
    if found == job or re.split(r"[_+]", found)[0] == job:
        return True
    return any(row["JobID"] == found and row["JobIDRaw"] == job for row in rows)


def _step(row: Row) -> Step:
    total = tres(row.get("TRESUsageInTot", ""))
    number = gpus(tres(row["AllocTRES"]))
    use = count(total.get("gres/gpuutil", ""))
    return Step(
        step_id=row["JobID"],
        name=row["JobName"],
        state=parse_state(row["State"]),
        start=moment(row["Start"]),
        end=moment(row["End"]),
        seconds=count(row["ElapsedRaw"]) or 0.0,
        nodes=_whole(row["NNodes"]),
        tasks=_whole(row["NTasks"]),
        cpus=_whole(row["NCPUS"]),
        gpus=number,
        cpu_seconds=_larger(spent_seconds(row["TotalCPU"]), spent_seconds(total.get("cpu", ""))),
        max_rss=size(row["MaxRSS"]) or None,
        max_rss_node=row["MaxRSSNode"],
        energy=count(row["ConsumedEnergyRaw"]) or None,
        gpu_use=None if use is None else min(use / 100 / max(number, 1), 1.0),
    )


def _job(row: Row, steps: list[Step]) -> Usage:
    state = parse_state(row["State"])
    got = tres(row["AllocTRES"] or row["ReqTRES"])
    seconds = count(row["ElapsedRaw"]) or 0.0
    own = [step for step in steps if not step.step_id.endswith((".batch", ".extern"))]
    energy = [step.energy for step in steps if step.energy]
    return Usage(
        job_id=row["JobID"],
        name=row["JobName"],
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        state=state,
        exit_code=shell_code(state, code_and_signal(row["ExitCode"])) if state.ended else None,
        submit=moment(row["Submit"]),
        start=moment(row["Start"]),
        end=moment(row["End"]) if state.ended else None,
        seconds=seconds,
        total_seconds=seconds,
        time_limit=time_limit(row["Timelimit"]),
        hosts="" if row["NodeList"] == "None assigned" else row["NodeList"],
        nodes=_whole(row["NNodes"]),
        tasks=max((step.tasks for step in own), default=0),
        cpus=_whole(got.get("cpu", "")) or _whole(row["NCPUS"]),
        gpus=gpus(got),
        gpu_type=gpu_type(got),
        memory=size(got.get("mem", "")),
        command=row.get("SubmitLine", ""),
        folder=row.get("WorkDir", ""),
        # While it runs this is the sum of its ended steps only.
        cpu_seconds=_cpu_seconds(row, steps, seconds) if state.ended else None,
        energy=count(row["ConsumedEnergyRaw"]) or (sum(energy) if energy else None),
        steps=steps if state.ended else [step for step in steps if step.state.ended],
    )


def _cpu_seconds(row: Row, steps: list[Step], seconds: float) -> float | None:
    """Return the CPU time of the whole job; None where almost nothing was counted."""
    known = [step.cpu_seconds for step in steps if step.cpu_seconds is not None]
    found = _larger(spent_seconds(row["TotalCPU"]), sum(known) if known else None)
    if found is not None and seconds >= LONG and found <= NEXT_TO_NOTHING * seconds:
        return None
    return found


def _larger(waited_for: float | None, sampled: float | None) -> float | None:
    """Return the larger of two: TotalCPU misses processes that were not waited for, samples miss short ones."""
    return max((each for each in (waited_for, sampled) if each is not None), default=None)


def _completed(usage: Usage, known: Usage | None) -> Usage:
    """Add what only slurmctld knows, as long as it keeps the job."""
    if known is None:
        return usage
    return replace(
        usage,
        tasks=known.tasks or usage.tasks,
        cpus_per_task=known.cpus_per_task,
        gpu_type=usage.gpu_type or known.gpu_type,
    )


def _whole(text: str) -> int:
    return round(count(text) or 0)
