"""Make the report of a run or job, and write it to its file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from allranks.cluster.slurm.jobs import checked_ids
from allranks.errors import AllranksError, RunNotFoundError, UsageError
from allranks.observe.report.advice import Advice, advise
from allranks.observe.report.external_job import external_job_facts, is_job_of, require_usage
from allranks.observe.report.html_report import html_report
from allranks.observe.report.model import RunFacts
from allranks.observe.report.report_plots import ReportPlot, report_plots
from allranks.observe.report.run_facts import run_facts
from allranks.observe.report.text_reports import markdown_report, report_record
from allranks.observe.report.verdict import verdict
from allranks.runs.atomic_files import put_text, write_text
from allranks.runs.run_folder import Run
from allranks.runs.run_lookup import find_run

FORMATS = {"html": "html", "markdown": "md", "json": "json"}
"""The forms of a report and how their files end."""


@dataclass(frozen=True)
class Report:
    """The facts, the advice and the plots of a report."""

    facts: RunFacts
    advice: Sequence[Advice]
    plots: Sequence[ReportPlot] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Return the report in one sentence."""
        return verdict(self.facts, self.advice)

    def text(self, form: str = "html") -> str:
        """Return the report in one of FORMATS."""
        if form == "html":
            return html_report(self.facts, self.advice, self.plots)
        if form == "markdown":
            return markdown_report(self.facts, self.advice)
        return (
            json.dumps(report_record(self.facts, self.advice), indent=2, ensure_ascii=False) + "\n"
        )

    def default_path(self, form: str = "html") -> Path:
        """Return ``report.html`` in the folder of the run or task if it is writable, else a file here."""
        facts, ending = self.facts, FORMATS[form]
        folder = Path(facts.folder, "tasks", facts.task) if facts.task else Path(facts.folder)
        if facts.kind == "run" and os.access(folder, os.W_OK):
            return folder / f"report.{ending}"
        name = facts.id if facts.kind == "run" else facts.job_ids[0]
        task = f"_{facts.task}" if facts.task else ""
        return Path(f"report-{name}{task}.{ending}").absolute()


def report_run(run: Run, *, task: str | None = None, now: datetime | None = None) -> Report:
    """Report on a run, ended or not; of a job array on one task, by default the newest."""
    facts, source = run_facts(run, task=task, now=now)
    return Report(facts, advise(facts), report_plots(source))


def report_job(job_id: str, *, now: datetime | None = None) -> Report:
    """Report on a Slurm job, whoever started it; for a job of a run, report on the run."""
    checked_ids(job_id)
    run = _run_of(job_id)
    if run is not None and _is_of(run, job_id):
        task = job_id.partition("_")[2] if run.array else ""
        return report_run(run, task=task or None, now=now)
    facts = external_job_facts(require_usage(job_id), now=now)
    return Report(facts, advise(facts))


def _is_of(run: Run, job_id: str) -> bool:
    """Return whether Slurm confirms the job; without an answer the run folder decides."""
    try:
        return is_job_of(run, require_usage(job_id))
    except AllranksError:
        return True


def save_report(report: Report, form: str = "html", output: str = "") -> Path:
    """Write the report to ``output`` (a file or a folder), or to its default path.

    Only a file that the user names may be a link or a pipe: in a folder others may have put one.
    """
    usual = report.default_path(form)
    path = Path(output).expanduser() if output else usual
    put = put_text if output else write_text
    try:
        if path.is_dir():
            path, put = path / usual.name, write_text
        put(path, report.text(form))
    except OSError as error:
        raise UsageError(
            f"The report cannot be written to {path}: {error.strerror or error}.\n"
            "Choose another place: --output FILE, or print it: --output -"
        ) from None
    return path


def _run_of(job_id: str) -> Run | None:
    """Return the run that has this job, if any."""
    try:
        run = find_run(job_id)
    except RunNotFoundError:
        return None
    wanted = {job_id, job_id.partition("_")[0], job_id.partition("+")[0]}
    return run if wanted & set(run.job_ids) else None
