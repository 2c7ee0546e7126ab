"""The random moments of soak tests, and the table of what the interruptions cost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from soak_rig import Tallies, Tally, table


@pytest.fixture
def dice(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> random.Random:
    """Random moments, the same ones again with ALLRANKS_SOAK_SEED."""
    # pytest-xdist gives all workers of a session the same id: one seed repeats the whole session.
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:8] or f"{random.randrange(1 << 30)}"
    seed = os.environ.get("ALLRANKS_SOAK_SEED") or session
    print(f"ALLRANKS_SOAK_SEED={seed}")
    record_property("soak seed", seed)
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def tallies(record_property: Callable[[str, object], None]) -> Iterator[Tallies]:
    """What the test met; it travels to the process that prints."""
    met: Tallies = {}
    yield met
    record_property("tallies", {kind: asdict(tally) for kind, tally in met.items()})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total: Tallies = {}
    seeds: dict[str, str] = {}
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if getattr(report, "when", "") == "teardown":
            properties = dict(report.user_properties)
            for kind, met in properties.get("tallies", {}).items():
                total.setdefault(kind, Tally()).add(Tally(**met))
            if seed := properties.get("soak seed"):
                seeds[report.nodeid] = seed
    if total:
        terminalreporter.section("ends of trainings")
        terminalreporter.write_line(table(total))
    if seeds:
        terminalreporter.section("random moments")
        for seed in sorted({*seeds.values()}):
            tests = [nodeid for nodeid, used in seeds.items() if used == seed]
            terminalreporter.write_line(f"ALLRANKS_SOAK_SEED={seed} repeats {' '.join(tests)}")
