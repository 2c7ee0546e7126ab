"""The Scheduler interface: plan a job, start it, and look after the run that it becomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from allranks.errors import JobError
from allranks.job.config_sources import JobLayer
from allranks.job.fields import Job
from allranks.job.plan import Plan
from allranks.job.resolve import resolve
from allranks.runs.run_folder import Run

if TYPE_CHECKING:
    from allranks.cluster.slurm.job_status import JobStatus
    from allranks.schedulers.run_state import RunFolder, RunStatus


@dataclass(frozen=True)
class StartedRun:
    """A run that was started: queued, or run to its end."""

    run: Run
    job_id: str = ""
    """Of a job in the queue."""
    exit_code: int | None = None
    """Of a run that was waited for; None of a job in the queue."""
    notes: tuple[str, ...] = ()
    """What the user should know, in sentences."""


class Scheduler(ABC):
    """One place that jobs can go to."""

    name: ClassVar[str]
    """As ``run.json`` has it."""
    verb: ClassVar[str]
    """The command that starts a job there: ``allranks submit``."""
    on_cluster: ClassVar[bool] = True
    """Whether the job runs on nodes of a cluster, which a site describes, or on this machine."""
    limits_time: ClassVar[bool] = False
    """Whether it ends a run at the job's time limit."""

    def base_layer(self) -> JobLayer | None:
        """Return what is there to run on, as values of a job below the user's own."""
        return None

    def plan(
        self,
        values: Mapping[str, Any] | Job,
        *,
        source: str = "command line",
        config: str | None = None,
        detect: bool = False,
    ) -> Plan:
        """Resolve a job for this scheduler; ``detect`` queries the cluster where no site file knows it."""
        layer = self.base_layer()
        between = (layer,) if layer else ()
        return resolve(
            values,
            on_cluster=self.on_cluster,
            source=source,
            config=config,
            between=between,
            detect=detect,
        )

    @abstractmethod
    def start(
        self, plan: Plan, *, python: str | None, made_by: str = "", show: str = "all"
    ) -> StartedRun:
        """Start the plan as a new run: submit it, or run it and wait for its end.

        ``python``: the interpreter of jobs on this machine. ``made_by``: the command, for the head of a
        job script. ``show``: the ranks whose output is shown.
        """

    def state(self, run: Run, timeout: float = 30) -> RunStatus:
        """Return the present state of a run."""
        from allranks.schedulers.run_state import RunFolder, query_jobs

        known, error = query_jobs(self.jobs_to_query(RunFolder(run)), timeout)
        return self.status(RunFolder(run), known, error)

    def cancel(self, run: Run) -> str:
        """End a run; return what was done."""
        status = self.state(run)
        if status.state.ended:
            return f"has ended already ({status.state.value})"
        return self.terminate(run)

    @abstractmethod
    def terminate(self, run: Run) -> str:
        """End a run that has not ended; return what was done."""

    @abstractmethod
    def resume(
        self, run: Run, changes: Mapping[str, int | None], *, python: str | None
    ) -> StartedRun:
        """Start one more attempt in the same run folder, with changed limits."""

    def check_resumable(self, run: Run, force: bool) -> None:
        """Refuse a run that still runs, or may, or that has finished; ``force`` allows the last two."""
        self.check_ended(self.state(run), force)
        if not run.finished:
            return
        if not force:
            raise JobError(
                f"{run.id} has finished: there is nothing left to do.\n"
                f"Start it once more all the same: allranks resume --force {run.id}"
            )
        for sign in run.path.glob("finished*"):
            sign.unlink()

    def check_ended(self, status: RunStatus, force: bool) -> None:
        """Refuse a run that still runs: a second attempt would write the same files."""
        if status.state.ended or status.is_running is None:
            return
        run, job = status.run, f", job {status.job_id}" if status.job_id else ""
        raise JobError(
            f"{run.id} has not ended ({status.state.value}{job}): a second attempt would write the "
            f"same files.\nWatch it: allranks logs -f {run.id}\nEnd it: allranks cancel {run.id}"
        )

    @abstractmethod
    def jobs_to_query(self, folder: RunFolder) -> list[str]:
        """Return the Slurm jobs that the state of a run depends on."""

    @abstractmethod
    def status(self, folder: RunFolder, known: Mapping[str, JobStatus], error: str) -> RunStatus:
        """Return the state of a run; ``known`` is what Slurm reported, ``error`` why it did not."""

    def folder_status(self, folder: RunFolder, enclosing: JobStatus | None = None) -> RunStatus:
        """return the state that the run folder has, without a call to Slurm."""
        return folder.status()
