"""What was asked for and what ran: the plan with its origins, the script, versions, environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allranks.core.redaction import redact_environment, redact_text, redact_words
from allranks.observe.view.run_source import RunSource
from allranks.runs.atomic_files import open_file, read_json
from allranks.runs.run_records import environment, plan_rows

_MOST = 512 << 10  # bytes of a text that are shown


def job_facts(source: RunSource) -> dict[str, Any]:
    """As JSON. Texts of users pass the redaction once more: a page is what one shows to others."""
    run, last = source.run, source.last
    plan, code = read_json(run.path / "plan.json"), read_json(run.path / "code.json")
    return {
        "folder": str(run.path),
        "command": redact_words(run.command),
        "cwd": run.cwd,
        "launcher": plan.get("launcher"),
        "site": plan.get("site"),
        "allranks": plan.get("allranks"),
        "shape": plan.get("shape") if isinstance(plan.get("shape"), dict) else {},
        "values": plan_values(plan),
        "training": flat(read_json(source.folder / "training.json")),
        "script": redact_text(_text(run.path / "job.sh")),
        "code": {key: code[key] for key in ("commit", "branch", "dirty", "mode") if key in code},
        "versions": _versions(read_json(run.path / "versions.json")),
        "environment": redact_environment(environment(last.path)) if last else {},
    }


def plan_values(plan: dict[str, Any]) -> list[dict[str, str]]:
    """Name, value and origin of each."""
    return [
        {"name": name, "value": redact_text(value), "origin": origin}
        for name, value, origin in plan_rows(plan)
    ]


def flat(values: dict[str, Any], before: str = "") -> dict[str, str]:
    """Nested keys as ``model.width``."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{key}.")
        elif value is not None:
            found[before + key] = redact_text(str(value))
    return found


def _versions(versions: dict[str, Any]) -> dict[str, Any]:
    packages = versions.get("packages")
    return {
        "python": versions.get("python"),
        "platform": versions.get("platform"),
        "executable": versions.get("executable"),
        "packages": packages if isinstance(packages, dict) else {},
    }


def _text(path: Path) -> str:
    """The beginning of a file of the run; a link that leads out of its folder is not followed."""
    try:
        if path.is_symlink():
            return ""
        with open(open_file(path), "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
