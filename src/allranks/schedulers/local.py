"""This machine: run a job on its GPUs, report its state, cancel it, resume its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from allranks.errors import UsageError
from allranks.job.config_sources import JobLayer, file_layer
from allranks.job.fields import Job
from allranks.job.plan import Plan
from allranks.runs.atomic_files import read_json
from allranks.runs.run_folder import Run
from allranks.runtime.agent.attempt_start import record_kill
from allranks.schedulers.base import StartedRun
from allranks.schedulers.foreground import ForegroundScheduler
from allranks.schedulers.local_attempts import run_attempts
from allranks.schedulers.local_setup import (
    check_launcher,
    interpreter_and_setup,
    mpi_family,
    unused_settings_note,
)
from allranks.schedulers.run_setup import (
    copy_allranks,
    copy_strict_configs,
    make_run,
    record_versions,
    snapshot_code,
    use_copied_code,
)


class LocalScheduler(ForegroundScheduler):
    """This machine."""

    name: ClassVar[str] = "local"
    on_cluster: ClassVar[bool] = False

    def base_layer(self) -> JobLayer | None:
        """One rank per GPU unless the user says otherwise."""
        gpus = local_gpus()
        return JobLayer("this machine", {"gpus_per_node": str(gpus)} if gpus else {})

    def plan(
        self,
        values: Mapping[str, Any] | Job,
        *,
        source: str = "command line",
        config: str | None = None,
        detect: bool = False,
    ) -> Plan:
        plan = super().plan(values, source=source, config=config, detect=detect)
        note = unused_settings_note(plan)
        return replace(plan, notes=(*plan.notes, note)) if note else plan

    def start(
        self, plan: Plan, *, python: str | None, made_by: str = "", show: str = "all"
    ) -> StartedRun:
        """Run the plan; the code and the versions are described while the ranks start."""
        python, setup = interpreter_and_setup(plan, python or plan.python)
        check_launcher(plan, python)
        run = self._make_run(plan, python)
        if plan.job.snapshot == "copy":
            snapshot_code(plan, run, "copy")

        def describe() -> None:
            try:
                record_versions(plan, run, None if setup else python)
                if plan.job.snapshot != "copy":
                    snapshot_code(plan, run, "reference")
            except OSError as error:  # what is not described can still be trained
                print(
                    f"allranks: the versions and the code were not recorded: {error}",
                    file=sys.stderr,
                )

        ready = _completed(plan, run, python, setup)
        code = run_attempts(ready, run, setup, show=show, meanwhile=describe)
        return StartedRun(run, exit_code=code)

    def prepare(self, plan: Plan, python: str) -> Run:
        python, _ = interpreter_and_setup(plan, python)
        check_launcher(plan, python)
        run = self._make_run(plan, python)
        snapshot_code(plan, run, "reference")
        return run

    def execute(self, plan: Plan, run: Run, *, python: str, show: str = "all") -> int:
        python, setup = interpreter_and_setup(plan, python)
        check_launcher(plan, python)
        if (last := run.last_attempt) is not None:
            record_kill(last, then="stop")  # nothing followed it until now
        return run_attempts(_completed(plan, run, python, setup), run, setup, show=show)

    def resume(
        self, run: Run, changes: Mapping[str, int | None], *, python: str | None
    ) -> StartedRun:
        plan = self._recorded_plan(run)
        given: dict[str, Any] = {k: value for k, value in changes.items() if value is not None}
        plan = replace(plan, job=replace(plan.job, **given))
        python = plan.job.python or python or plan.python
        return StartedRun(run, exit_code=self.execute(plan, run, python=python))

    def _make_run(self, plan: Plan, python: str) -> Run:
        run = make_run(plan, self.name)
        if python != sys.executable:  # another environment's, where allranks may be missing
            copy_allranks(run)
        return run

    def _recorded_plan(self, run: Run) -> Plan:
        """Return the plan as it was: what was given then counts as given now."""
        config = run.path / "job.toml"
        if not config.is_file():
            raise UsageError(
                f"{run.path} has no job.toml: it was not started by allranks run.\n"
                "Start its script again; resume='auto' or a path in TrainConfig resumes from its "
                "checkpoints."
            )
        os.chdir(run.cwd or Path.cwd())
        record = read_json(run.path / "plan.json").get("values")
        rows = [row for row in record if isinstance(row, dict)] if isinstance(record, list) else []
        given = {
            str(row.get("name")) for row in rows if row.get("origin") in ("command line", "Python")
        }
        values = {name: value for name, value in file_layer(config).values.items() if name in given}
        return super().plan(values, config=str(config))


def _completed(plan: Plan, run: Run, python: str, setup: list[str]) -> Plan:
    """Return the plan with the files of the run folder, the interpreter and the MPI that is there."""
    plan = copy_strict_configs(plan, run)
    if plan.job.snapshot == "copy":
        plan = use_copied_code(plan, run)
    plan = replace(plan, job=replace(plan.job, python=python))
    if not plan.job.mpi and plan.launcher.is_mpi(plan.job):
        plan = replace(plan, job=replace(plan.job, mpi=mpi_family(setup)))
    return plan


def local_gpus(root: Path = Path("/")) -> int:
    """Return how many GPUs a process here would see, without importing anything."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        visible = os.environ.get(variable)
        if visible is not None:
            return len(
                [device for device in visible.split(",") if device.strip() not in ("", "-1")]
            )
    nvidia = root / "proc/driver/nvidia/gpus"
    if nvidia.is_dir():
        return len(list(nvidia.iterdir()))
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    files = nodes.glob("*/properties") if nodes.is_dir() else ()
    return sum(1 for file in files if "simd_count 0\n" not in file.read_text())
