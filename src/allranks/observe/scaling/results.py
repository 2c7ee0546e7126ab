"""The files of a study's results: JSON for programs, a page to look at, Markdown and a plot to paste."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from allranks.errors import AllranksError
from allranks.observe.scaling.analysis import Analysis, SizeResult
from allranks.observe.scaling.page import make_page
from allranks.observe.scaling.study_file import DONE, Study
from allranks.observe.scaling.study_markdown import PICTURE, markdown
from allranks.observe.scaling.study_plots import speedup_plot
from allranks.runs.atomic_files import write_json, write_text

JSON, PAGE, MARKDOWN = "result.json", "scaling.html", "scaling.md"


def write_results(study: Study, found: Analysis) -> None:
    """Anew each time: they hold what is known of the study so far. AllranksError when they cannot be."""
    try:
        write_json(study.path / JSON, result(study, found))
        picture = any(row.speedup for row in found.rows)
        if picture:
            write_text(study.path / PICTURE, speedup_plot(study, found))
        write_text(study.path / MARKDOWN, markdown(study, found, picture=picture))
        write_text(study.path / PAGE, make_page(study, found))
    except OSError as error:
        raise AllranksError(
            f"The results cannot be written in {study.path}: {error.strerror}."
        ) from None


def result(study: Study, found: Analysis) -> dict[str, Any]:
    """The study as JSON values: what ``--json`` prints."""
    return {
        "study": study.id,
        "folder": str(study.path),
        "name": study.name,
        "axis": study.axis.option.removeprefix("--"),
        "where": study.where,
        "kind": found.kind,
        "unit": found.unit,
        "steps": study.steps,
        "complete": all(point.state == DONE for point in study.points),
        "points": [_row(study, row, found) for row in found.rows],
        "serial_share": found.fit.serial if found.fit else None,
        "law": found.fit.law if found.fit else None,
        "most_speedup": found.fit.limit if found.fit else None,
        "pays_up_to": found.pays,
        "problems": found.problems,
        "sentences": found.sentences,
    }


def _row(study: Study, row: SizeResult, found: Analysis) -> dict[str, Any]:
    point = row.point
    values: dict[str, Any] = {
        "size": row.size,
        "nodes": point.nodes,
        "ranks": point.ranks,
        "gpus": point.gpus,
        "cpus": point.cpus,
        "state": point.state if not row.problems or row.rate else "failed",
        "problems": list(row.problems),
        "runs": [one.run for one in study.at(row.size) if one.run],
        f"{found.unit.replace(' ', '_')}_per_second": row.rate,
        "low": row.low,
        "high": row.high,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "gpu_hours" if found.per_gpu else "core_hours": row.cost,
        "hours": row.hours,
        "lost": row.lost,
        "doubt": row.doubt or None,
    }
    about = asdict(row.achieved) if row.achieved else {}
    return values | {name: about[name] for name in about if name not in ("rate", "unit")}
