"""The record that slurmctld keeps of a job: all that it requested, nothing of what it used."""

from __future__ import annotations

import re
from collections.abc import Mapping

from allranks.cluster.slurm.commands import query
from allranks.cluster.slurm.job_states import parse_state
from allranks.cluster.slurm.job_status import code_and_signal, moment, shell_code, time_limit
from allranks.cluster.slurm.job_usage import (
    Usage,
    count,
    gpus,
    requested_type,
    size,
    spent_seconds,
    tres,
)
from allranks.errors import SlurmError

_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/.-]*)=")


def controller_usage(job: str, env: Mapping[str, str] | None, timeout: float) -> list[Usage]:
    """Return the job, or its tasks or parts; empty when slurmctld does not know it any more."""
    try:
        text = query(["scontrol", "show", "job", "-o", job], timeout, env)
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        return []
    lines = [fields(line) for line in text.splitlines() if line.startswith("JobId=")]
    return [_usage(about) for about in lines]


def fields(line: str) -> dict[str, str]:
    """Return the ``Name=value`` pairs of one line; a value may hold blanks, and the first of a name counts."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        found.setdefault(mark[1], line[mark.end() : end].strip())
    return found


def _usage(about: Mapping[str, str]) -> Usage:
    state = parse_state(about.get("JobState", ""))
    got = tres(about.get("AllocTRES") or about.get("TRES") or about.get("ReqTRES") or "")
    seconds = spent_seconds(about.get("RunTime", "")) or 0.0
    return Usage(
        job_id=_job_id(about),
        source="scontrol",
        name=about.get("JobName", ""),
        user=about.get("UserId", "").partition("(")[0],
        account=_word(about.get("Account", "")),
        partition=about.get("Partition", ""),
        state=state,
        exit_code=shell_code(state, code_and_signal(about.get("ExitCode", "")))
        if state.ended
        else None,
        submit=moment(about.get("SubmitTime", "")),
        start=moment(about.get("StartTime", "")),
        end=moment(about.get("EndTime", "")) if state.ended else None,
        seconds=seconds,
        total_seconds=seconds,
        time_limit=time_limit(about.get("TimeLimit", "")),
        hosts=_word(about.get("NodeList", "")),
        nodes=_number(got.get("node", "")) or _number(about.get("NumNodes", "")),
        tasks=_number(about.get("NumTasks", "")),
        cpus=_number(got.get("cpu", "")) or _number(about.get("NumCPUs", "")),
        cpus_per_task=_number(about.get("CPUs/Task", "")) or None,
        gpus=gpus(got),
        gpu_type=requested_type(about.get("TresPerNode", "") or about.get("TresPerJob", "")),
        memory=size(got.get("mem", "")),
        command=_word(about.get("Command", "")),
        folder=_word(about.get("WorkDir", "")),
    )


def _job_id(about: Mapping[str, str]) -> str:
    if "ArrayTaskId" in about:
        return f"{about.get('ArrayJobId', about['JobId'])}_{about['ArrayTaskId']}"
    if "HetJobOffset" in about:
        return f"{about.get('HetJobId', about['JobId'])}+{about['HetJobOffset']}"
    return about["JobId"]


def _word(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None") else text


def _number(text: str) -> int:
    return round(count(text.partition("-")[0]) or 0)
