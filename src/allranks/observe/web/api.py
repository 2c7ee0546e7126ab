"""What the page asks for, as JSON below /api/. Nothing here changes anything."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from allranks.cluster.slurm.job_states import JobState
from allranks.errors import AllranksError, RunNotFoundError, UsageError
from allranks.observe.view.diagnostics import diagnostics
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import entry_record, plain, status_record
from allranks.observe.web import log_pages, reporting, searching
from allranks.observe.web.catalogue import Catalogue
from allranks.observe.web.comparing import MOST, compare
from allranks.observe.web.job_facts import job_facts
from allranks.observe.web.log_files import LogPosition
from allranks.observe.web.log_pages import Cursor
from allranks.observe.web.looks import WholePhases, heat_map, plots
from allranks.observe.web.questions import number_of, query_of, task_of, weight_of
from allranks.observe.web.run_rows import RunRows
from allranks.observe.web.slurm_queue import QueuedJobs
from allranks.observe.web.source_cache import Following, States
from allranks.runs.attempt_history import attempt_history
from allranks.runs.run import Run
from allranks.schedulers.run_state import RunStatus

_SHOWN = 100  # runs of the list in one answer
_LINES = 2000  # lines of a log in one answer, at most
_SCRAPED = 50  # runs that /metrics speaks of, at most
_OVER = 600.0  # seconds for which it speaks of one that has ended
_SCRAPE = 5.0  # seconds that it waits for Slurm, at most

Answer = Callable[[Request], Any]


class Api:
    """The questions and their answers, over the runs of one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._following = Following()
        self._scraped = Following(_SCRAPED)
        self._states = States()
        self._rows = RunRows(self._states)
        self._queue = QueuedJobs()
        self._phases = WholePhases()

    def routes(self) -> list[Route]:
        """Every path below /api/, /metrics, and the reports."""
        answers: dict[str, Answer] = {
            "/api/runs": self.runs,
            "/api/compare": self.compare,
            "/api/runs/{run}": self.look,
            "/api/runs/{run}/plots": self.plots,
            "/api/runs/{run}/heat": self.heat,
            "/api/runs/{run}/logs": self.logs,
            "/api/runs/{run}/remarks": self.remarks,
            "/api/runs/{run}/job": self.job,
        }
        json_routes = [Route(path, _as_json(answer)) for path, answer in answers.items()]
        others = [Route("/metrics", self.metrics), Route("/runs/{run}/report", self.report)]
        return [*json_routes, *others]

    def runs(self, request: Request) -> dict[str, Any]:
        """The list, newest first, and the jobs in the queue that are no runs."""
        runs = self._catalogue.runs()
        limit = number_of(request, "limit", _SHOWN, 10_000)
        ours = {job for _, run in runs for job in run.job_ids}
        return {
            "runs": self._rows.rows(runs[:limit], curves=request.query_params.get("curves") != "0"),
            "more": max(len(runs) - limit, 0),
            "jobs": self._queue.jobs(ours),
        }

    def look(self, request: Request) -> dict[str, Any]:
        """Everything but the plots; without a choice the attempts are those of all tasks of an array."""
        run, task = self._run(request), task_of(request)
        status = self._states.of([run])[0]
        with self._following.source(run, task) as source:
            snapshot = view_run(source, status)
            found = plain(snapshot) | {"tasks": source.tasks}
            if snapshot.status.state.ended:
                found["phases"] = self._phases.of(source)  # of all its steps, not of the last
        shown = snapshot.status if task else status
        if found["tasks"] and not task:
            entries = attempt_history(run.attempts, status.is_running)
            found["attempts"] = [entry_record(entry) for entry in entries]
        for name in ("loss", "val_loss", "last_lines"):  # the plots and the logs have more of them
            del found[name]
        found["ranks"] = [_rank(rank) for rank in found["ranks"]]
        state = {"state": shown.state.value, "ended": shown.state.ended}
        return found | state | {"status": status_record(shown), "id": request.path_params["run"]}

    def plots(self, request: Request) -> dict[str, Any]:
        """Loss, throughput, phases and chosen metrics by step."""
        names = request.query_params.getlist("names")
        with self._following.source(self._run(request), task_of(request)) as source:
            return plots(source, names, weight_of(request))

    def heat(self, request: Request) -> dict[str, Any]:
        """One heat map, ranks × time."""
        with self._following.source(self._run(request), task_of(request)) as source:
            return heat_map(source, request.query_params.get("what", "gpu"))

    def logs(self, request: Request) -> dict[str, Any]:
        """A page of the logs: the last, before, after or around a line, or what a search finds."""
        run, query, given = self._run(request), query_of(request), request.query_params
        limit = number_of(request, "limit", 500, _LINES)
        if "at" in given:
            return log_pages.around(run, query, limit, LogPosition.read(given["at"]))
        if "before" in given:
            return log_pages.last_page(run, query, limit, Cursor.read(given["before"]))
        if not query.chosen and "after" not in given:
            return log_pages.last_page(run, query, limit)
        after = Cursor.read(given["after"]) if "after" in given else None
        find = searching.search if query.text and query.regex else log_pages.next_page
        return find(run, query, limit, after)

    def remarks(self, request: Request) -> dict[str, Any]:
        """What lint, check and the failures have to say."""
        return {"remarks": [asdict(one) for one in diagnostics(self._run(request))]}

    def job(self, request: Request) -> dict[str, Any]:
        """What was asked for and what ran."""
        with self._following.source(self._run(request), task_of(request)) as source:
            return job_facts(source)

    def compare(self, request: Request) -> dict[str, Any]:
        """Some runs side by side."""
        keys = list(dict.fromkeys(request.query_params.getlist("runs")))
        if not 1 <= len(keys) <= MOST:
            raise UsageError(f"Choose between 2 and {MOST} runs to compare.")
        runs = self._catalogue.some(keys)
        x = "time" if request.query_params.get("x") == "time" else "step"
        metric = request.query_params.get("metric") or "train_loss"
        return compare(runs, self._following, x=x, metric=metric, weight=weight_of(request))

    def metrics(self, _: Request) -> Response:
        """For Prometheus: the runs that live or wait, and for a while those that have ended."""
        from allranks.observe.export.openmetrics import CONTENT_TYPE, exposition

        runs = [run for _, run in self._catalogue.runs()[:_SHOWN]]
        told = [one for one in self._states.of(runs, wait=_SCRAPE) if _of_interest(one)][:_SCRAPED]
        snapshots = []
        for status in told:
            with self._scraped.source(status.run) as source:
                snapshots += [view_run(each, status) for each in source.each()]
        return Response(exposition(snapshots), media_type=CONTENT_TYPE)

    def report(self, request: Request) -> Response:
        """The report of a run as a page of its own."""
        try:
            return reporting.report(self._run(request), task_of(request))
        except AllranksError as error:
            return PlainTextResponse(f"{error}\n", _refused(error))

    def _run(self, request: Request) -> Run:
        return self._catalogue.run(request.path_params["run"])


def _of_interest(status: RunStatus) -> bool:
    """Not one that ended long ago: it would never leave the dashboards."""
    if not status.state.ended:
        return status.state is not JobState.UNKNOWN
    return status.end is not None and time.time() - status.end.timestamp() < _OVER


def _rank(rank: dict[str, Any]) -> dict[str, Any]:
    """What the head of the page tells of it; there may be thousands."""
    gpu = rank["gpu"] or {}
    kept = ("rank", "host", "behind", "straggler", "failed")
    return {name: rank[name] for name in kept} | {"use": gpu.get("use")}


def _as_json(answer: Answer) -> Callable[[Request], Response]:
    """An answer with a tag of its content, so that one that did not change is not sent again."""

    def endpoint(request: Request) -> Response:
        try:
            content = answer(request)
        except AllranksError as error:
            return JSONResponse({"error": str(error)}, _refused(error))
        moment = content.pop("time", None)
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, default=str)
        tag = f'W/"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, {"ETag": tag})
        now = json.dumps(moment or time.time())
        body = f'{text[:-1]}{"," if content else ""}"time":{now}}}'
        return Response(body, 200, {"ETag": tag}, "application/json")

    return endpoint


def _refused(error: AllranksError) -> int:
    return 404 if isinstance(error, RunNotFoundError) else 400
