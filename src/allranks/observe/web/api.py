"""The JSON API of the page, below /api/. All requests are read-only."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from allranks.cluster.slurm.job_states import JobState
from allranks.errors import AllranksError, RunNotFoundError, UsageError
from allranks.observe.view.diagnostics import diagnostics
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import entry_record, status_record, view_record
from allranks.observe.web import log_pages
from allranks.observe.web.catalogue import Catalogue
from allranks.observe.web.child_processes import make_report, search_logs
from allranks.observe.web.comparison import MOST, compare, job_facts
from allranks.observe.web.log_files import LogPosition, LogQuery
from allranks.observe.web.log_pages import Cursor
from allranks.observe.web.plot_data import PhaseCache, heat_map, plots
from allranks.observe.web.request_cache import QueuedJobs, SourceCache, StatusCache
from allranks.observe.web.run_rows import RunRows
from allranks.runs.attempt_history import attempt_history
from allranks.runs.run_folder import Run
from allranks.schedulers.run_state import RunStatus

_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*")


def log_query_param(request: Request) -> LogQuery:
    """Return the query for lines of the logs."""
    given = request.query_params
    ranks = given.get("ranks", "")
    if ranks and not _RANKS.fullmatch(ranks.replace(" ", "")):
        raise UsageError(f"'{ranks[:100]}' is not a list of ranks. Write 0, 0,3 or 4-7.")
    return LogQuery(
        text=given.get("q", ""),
        regex=given.get("regex") == "1",
        case=given.get("case") == "1",
        ranks=_ranks(ranks.replace(" ", "")) if ranks else None,
        attempt=int_param(request, "attempt", 0, 1 << 30) or None,
        task=task_param(request) or "",
        errors=given.get("errors") == "1",
        stream=given.get("stream", ""),
    )


def _ranks(text: str) -> list[range]:
    """Parse ``0,4-7`` into ranges, as ``logs --rank`` does."""
    parts = (part.partition("-") for part in text.split(","))
    return [range(int(first), int(last or first) + 1) for first, _, last in parts]


def int_param(request: Request, name: str, usual: int, most: int) -> int:
    """Return a number by its name, at most ``most``; ``usual`` where none is given."""
    text = request.query_params.get(name, "")
    if not re.fullmatch(r"[0-9]{0,18}", text):
        raise UsageError(f"{name}={text[:100]} is not a number.")
    return min(int(text), most) if text else usual


def task_param(request: Request) -> str | None:
    """Return the task of a job array: a number, as it becomes a part of a path."""
    text = request.query_params.get("task", "")
    if not re.fullmatch(r"[0-9]{0,9}", text):
        raise UsageError(f"task={text[:100]} is not the number of an array's task.")
    return text or None


def smoothing_param(request: Request) -> float:
    """Return the weight of the smoothing: from 0, none, to below 1."""
    try:
        return min(max(float(request.query_params.get("smooth", "0")), 0.0), 0.999)
    except ValueError:
        return 0.0


_SHOWN = 100  # runs of the list in one answer
_LINES = 2000  # lines of a log in one answer, at most
_SCRAPED = 50  # runs that /metrics speaks of, at most
_OVER = 600.0  # seconds for which it speaks of one that has ended
_SCRAPE = 5.0  # seconds that it waits for Slurm, at most

_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The report is one file: its styles are in it, and nothing else is to be loaded or run."""

Answer = Callable[[Request], Any]


class Api:
    """The endpoints, over the runs of one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._following = SourceCache()
        self._scraped = SourceCache(_SCRAPED)
        self._states = StatusCache()
        self._rows = RunRows(self._states)
        self._queue = QueuedJobs()
        self._phases = PhaseCache()

    def routes(self) -> list[Route]:
        """Return every path below /api/, /metrics, and the reports."""
        answers: dict[str, Answer] = {
            "/api/runs": self.runs,
            "/api/compare": self.compare,
            "/api/runs/{run}": self.overview,
            "/api/runs/{run}/plots": self.plots,
            "/api/runs/{run}/heat": self.heat,
            "/api/runs/{run}/logs": self.logs,
            "/api/runs/{run}/diagnostics": self.diagnostics,
            "/api/runs/{run}/job": self.job,
        }
        json_routes = [Route(path, _as_json(answer)) for path, answer in answers.items()]
        others = [Route("/metrics", self.metrics), Route("/runs/{run}/report", self.report)]
        return [*json_routes, *others]

    def runs(self, request: Request) -> dict[str, Any]:
        """List runs, newest first, and the user's other jobs in the queue."""
        runs = self._catalogue.runs()
        limit = int_param(request, "limit", _SHOWN, 10_000)
        ours = {job for _, run in runs for job in run.job_ids}
        return {
            "runs": self._rows.rows(runs[:limit], curves=request.query_params.get("curves") != "0"),
            "more": max(len(runs) - limit, 0),
            "jobs": self._queue.jobs(ours),
        }

    def overview(self, request: Request) -> dict[str, Any]:
        """Return everything but the plots; without a task the attempts are those of all tasks."""
        run, task = self._run(request), task_param(request)
        status = self._states.of([run])[0]
        with self._following.source(run, task) as source:
            run_view = view_run(source, status)
            found = view_record(run_view) | {"tasks": source.tasks}
            if run_view.status.state.ended:
                found["phases"] = self._phases.of(source)  # of all its steps, not of the last
        shown = run_view.status if task else status
        if found["tasks"] and not task:
            entries = attempt_history(run.attempts, status.is_running)
            found["attempts"] = [entry_record(entry) for entry in entries]
        for name in ("loss", "val_loss", "last_lines"):  # the plots and the logs have more of them
            del found[name]
        found["ranks"] = [_rank(rank) for rank in found["ranks"]]
        state = {"state": shown.state.value, "ended": shown.state.ended}
        return found | state | {"status": status_record(shown), "id": request.path_params["run"]}

    def plots(self, request: Request) -> dict[str, Any]:
        """Return loss, throughput, phases and chosen metrics by step."""
        names = request.query_params.getlist("names")
        with self._following.source(self._run(request), task_param(request)) as source:
            return plots(source, names, smoothing_param(request))

    def heat(self, request: Request) -> dict[str, Any]:
        """Return one heat map, ranks × time."""
        with self._following.source(self._run(request), task_param(request)) as source:
            return heat_map(source, request.query_params.get("what", "gpu"))

    def logs(self, request: Request) -> dict[str, Any]:
        """Return a page of the logs: the last, before, after or around a line, or search results."""
        run, query, given = self._run(request), log_query_param(request), request.query_params
        limit = int_param(request, "limit", 500, _LINES)
        if "at" in given:
            return log_pages.around(run, query, limit, LogPosition.read(given["at"]))
        if "before" in given:
            return log_pages.last_page(run, query, limit, Cursor.read(given["before"]))
        if not query.filtered and "after" not in given:
            return log_pages.last_page(run, query, limit)
        after = Cursor.read(given["after"]) if "after" in given else None
        find = search_logs if query.text and query.regex else log_pages.next_page
        return find(run, query, limit, after)

    def diagnostics(self, request: Request) -> dict[str, Any]:
        """Return the failures and the findings of lint and check."""
        return {"diagnostics": [asdict(one) for one in diagnostics(self._run(request))]}

    def job(self, request: Request) -> dict[str, Any]:
        """Return what was requested and what ran."""
        with self._following.source(self._run(request), task_param(request)) as source:
            return job_facts(source)

    def compare(self, request: Request) -> dict[str, Any]:
        """Return several runs side by side."""
        keys = list(dict.fromkeys(request.query_params.getlist("runs")))
        if not 1 <= len(keys) <= MOST:
            raise UsageError(f"Choose between 2 and {MOST} runs to compare.")
        runs = self._catalogue.select(keys)
        x = "time" if request.query_params.get("x") == "time" else "step"
        metric = request.query_params.get("metric") or "train_loss"
        return compare(runs, self._following, x=x, metric=metric, weight=smoothing_param(request))

    def metrics(self, _: Request) -> Response:
        """Return active and waiting runs for Prometheus, and for a while those that have ended."""
        from allranks.observe.export.prometheus import CONTENT_TYPE, openmetrics_text

        runs = [run for _, run in self._catalogue.runs()[:_SHOWN]]
        statuses = [one for one in self._states.of(runs, wait=_SCRAPE) if _of_interest(one)][
            :_SCRAPED
        ]
        run_views = []
        for status in statuses:
            with self._scraped.source(status.run) as source:
                run_views += [view_run(each, status) for each in source.task_sources()]
        return Response(openmetrics_text(run_views), media_type=CONTENT_TYPE)

    def report(self, request: Request) -> Response:
        """Return the report of a run as a page of its own."""
        try:
            status, text = make_report(self._run(request), task_param(request))
        except AllranksError as error:
            return PlainTextResponse(f"{error}\n", _refused(error))
        if status != 200:
            return PlainTextResponse(text, status)
        return HTMLResponse(text, headers={"Content-Security-Policy": _REPORT_POLICY})

    def _run(self, request: Request) -> Run:
        return self._catalogue.run(request.path_params["run"])


def _of_interest(status: RunStatus) -> bool:
    """Return whether Prometheus should see the run: not if it ended long ago."""
    if not status.state.ended:
        return status.state is not JobState.UNKNOWN
    return status.end is not None and time.time() - status.end.timestamp() < _OVER


def _rank(rank: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a rank that the page's header shows; there may be thousands of ranks."""
    gpu = rank["gpu"] or {}
    kept = ("rank", "host", "behind", "straggler", "failed")
    return {name: rank[name] for name in kept} | {"use": gpu.get("use")}


def _as_json(answer: Answer) -> Callable[[Request], Response]:
    """Return an endpoint that sends an ETag, so that an unchanged answer is not sent again."""

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
