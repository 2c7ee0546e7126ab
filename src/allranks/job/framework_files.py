"""Settings files of frameworks that a job uses: read, and compared with the job before it starts."""

from __future__ import annotations

from dataclasses import replace

from allranks.job.accelerate_config import check_accelerate_file, find_accelerate_file
from allranks.job.deepspeed_config import check_deepspeed_config
from allranks.job.plan import Plan


def check_files(plan: Plan, scheduler: str) -> Plan:
    """The plan with what the files add to it; a contradiction is an error here, not in every rank."""
    plan = replace(plan, accelerate_file=find_accelerate_file(plan))
    notes = (*check_accelerate_file(plan, scheduler), *check_deepspeed_config(plan, scheduler))
    return replace(plan, notes=(*plan.notes, *notes))
