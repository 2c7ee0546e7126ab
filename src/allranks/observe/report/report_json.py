"""The report for programs: stable keys, plain values, described in ``docs/report.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks._version import __version__
from allranks.core.formatting import clean_lines
from allranks.observe.report.advice import Advice, enough
from allranks.observe.report.model import RunFacts
from allranks.observe.report.verdict import verdict
from allranks.observe.view.view_json import json_value

FORMAT = 1
"""Goes up when a key changes its meaning or goes away; new ones may come at any time."""


def record(facts: RunFacts, advice: Sequence[Advice]) -> dict[str, Any]:
    """Sizes in bytes, times in seconds or ISO 8601, shares from 0 to 1; null is not known."""
    content = {
        "format": FORMAT,
        "allranks": __version__,
        "verdict": verdict(facts, advice),
        "judged": enough(facts),
        "advice": list(advice),
        **vars(facts),
        "step_seconds": facts.step_seconds or None,
        "values_asked": [
            {"name": name, "value": value, "origin": origin}
            for name, value, origin in facts.values_asked
        ],
    }
    content["used"] = {
        **vars(facts.used),
        "gpu_use": facts.used.gpu_use,
        "gpu_memory": facts.used.gpu_memory,
    }
    found: dict[str, Any] = _clean(json_value(content))
    return found


def _clean(value: Any) -> Any:
    """Its texts, each line as every other form of a report has it."""
    if isinstance(value, str):
        return clean_lines(value)
    if isinstance(value, dict):
        return {clean_lines(name): _clean(each) for name, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value
