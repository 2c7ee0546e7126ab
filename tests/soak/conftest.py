"""The table of what all those ends cost, after the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from soak_rig import Tallies, Tally, table


@pytest.fixture
def tallies(record_property: Callable[[str, object], None]) -> Iterator[Tallies]:
    """What the test met; it travels to the process that prints."""
    met: Tallies = {}
    yield met
    record_property("tallies", {kind: asdict(tally) for kind, tally in met.items()})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total: Tallies = {}
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if getattr(report, "when", "") == "teardown":
            for kind, met in dict(report.user_properties).get("tallies", {}).items():
                total.setdefault(kind, Tally()).add(Tally(**met))
    if total:
        terminalreporter.section("ends of trainings")
        terminalreporter.write_line(table(total))
