"""The table framework × launcher at the end of the run, from the tests marked as its cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from framework_rig import CACHE
from framework_table import Cell, table


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Hand the cells on with the report: it travels to the process that prints."""
    report: Any = yield
    if report.when == "call" or report.outcome != "passed":
        for mark in item.iter_markers("cell"):
            report.user_properties.append(("cell", list(mark.args)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, and keep it."""
    cells = [
        Cell(*words, outcome=report.outcome, reason=_why(report))
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, words in getattr(report, "user_properties", ())
        if name == "cell"
    ]
    if not cells:
        return
    text = table(cells)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "table.md").write_text(text + "\n")
    terminalreporter.section("frameworks and launchers")
    terminalreporter.write_line(text)


def _why(report: Any) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0] if crash else ""
