"""Fill a run folder before anything starts: the job, the code, the versions, allranks itself."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from allranks.job.deepspeed_config import with_strict_copies
from allranks.job.plan import Plan
from allranks.job.plan_record import job_toml, plan_record
from allranks.runs.atomic_files import read_json, write_json, write_text
from allranks.runs.code_snapshot import CodeSnapshot, take_snapshot
from allranks.runs.run_folder import Run
from allranks.runs.run_lookup import runs_root


def make_run(plan: Plan, scheduler: str) -> Run:
    """Make a new run folder for this plan, with the resolved job in it."""
    root = Path(plan.job.runs).absolute() if plan.job.runs else runs_root()
    cwd = Path(plan.job.chdir or ".").resolve()
    run = Run.create(
        root,
        plan.job.name or "run",
        scheduler=scheduler,
        cwd=cwd,
        command=["allranks", *sys.argv[1:]],
    )
    write_text(run.path / "job.toml", job_toml(plan))
    write_json(run.path / "plan.json", plan_record(plan))
    return run


def snapshot_code(plan: Plan, run: Run, default: str) -> tuple[Plan, CodeSnapshot]:
    """Take the code snapshot; with a copy, return the plan with the copied script.

    The working folder stays the user's, so relative paths to data keep their meaning, while imports
    come from the copy: Python puts the script's folder first.
    """
    cwd = Path(plan.job.chdir or ".").resolve()
    snapshot = take_snapshot(run.path, cwd, plan.job.snapshot or default)
    if snapshot.mode != "copy" or snapshot.root is None:
        return plan, snapshot
    kept = use_copied_code(plan, run, snapshot.root)
    if kept is plan:
        snapshot.notes.append(
            f"The job runs {plan.job.script} as it is when it starts; the copy in the run folder is "
            "for the record."
        )
    return kept, snapshot


def use_copied_code(plan: Plan, run: Run, root: Path | None = None) -> Plan:
    """Return the plan with the run's copy of the script, where it has one; ``root`` is the copied folder."""
    root = root or Path(str(read_json(run.path / "code.json").get("root")))
    script = Path(plan.job.chdir or ".", plan.job.script or "").resolve()
    inside = script.relative_to(root) if script.is_relative_to(root) else None
    copied = run.path / "code" / inside if inside else None
    if plan.job.module or copied is None or not copied.is_file():
        return plan
    return replace(plan, job=replace(plan.job, script=str(copied.resolve())))


def copy_strict_configs(plan: Plan, run: Run) -> Plan:
    """Replace a DeepSpeed configuration with comments in it by a copy of strict JSON."""
    args = with_strict_copies(plan, run.path)
    return plan if args == plan.job.args else replace(plan, job=replace(plan.job, args=args))


def record_versions(plan: Plan, run: Run, python: str | None) -> None:
    """Record the packages of the job's interpreter, where it can be run from here."""
    if python is not None and not plan.job.container:
        from allranks.runs.package_versions import write_versions

        write_versions(run.path, python)


def copy_allranks(run: Run) -> None:
    """Copy this package into the run folder, so that nodes and containers need not install it.

    With its compiled files: a thousand ranks that each compile it would be slow.
    """
    shutil.copytree(Path(__file__).parents[1], run.path / "lib" / "allranks")
