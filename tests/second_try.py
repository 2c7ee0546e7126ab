"""Pytest plugin: with ``--second-try``, run failed tests once more, alone, and report those that then pass as FLAKY.

The second try exists to be reported. A test that fails twice stays failed. Nothing is tried again after a
collection error, an internal error or an interrupt. A session in which no test ran fails too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LIMIT = 25
"""More failures than this have one cause, and it is not chance."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second try")
    group.addoption(
        "--second-try",
        action="store_true",
        help="run failed tests again, alone; those that pass then are listed under FLAKY",
    )
    group.addoption(
        "--write-reports", metavar="FILE", help="write each test report as a line of JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # the process that prints does it for all workers
        return
    if config.option.second_try:
        config.pluginmanager.register(SecondTry(config), "second-try")
    if config.option.write_reports:
        config.pluginmanager.register(ReportWriter(config), "report-writer")


class ReportWriter:
    """Write the reports of a session for another process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.path = Path(config.option.write_reports)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with open(self.path, "a") as file:
            file.write(json.dumps(data) + "\n")


class SecondTry:
    """Collect what failed, run it again, and correct the session's outcome."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.failed: dict[str, list[pytest.TestReport]] = defaultdict(list)
        self.flaky: dict[str, list[pytest.TestReport]] = {}
        self.collection_failed = False

    @property
    def terminal(self) -> Any:
        return self.config.pluginmanager.getplugin("terminalreporter")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collection_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid].append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if self.collection_failed:
            raise session.Interrupted("errors during collection")
        if self.failed and not session.shouldstop and not session.shouldfail:
            if len(self.failed) > LIMIT:
                self.terminal.write_line(f"\nno second try: {len(self.failed)} tests failed")
            else:
                self._try_again(session)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, object, object]:
        """Fail a session in which every test was skipped: it proves nothing."""
        if exitstatus == pytest.ExitCode.OK and not self._any_ran():
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self) -> Generator[None, object, object]:
        """List the flaky tests after everything else."""
        result = yield
        if self.flaky:
            self.terminal.section("FLAKY: failed, then passed when run again alone", yellow=True)
            for nodeid, reports in self.flaky.items():
                self.terminal.write_sep("_", nodeid)
                for report in reports:
                    self.terminal.write_line(report.longreprtext)
                    for title, text in report.sections:
                        self.terminal.write_line(f"--- {title} ---\n{text}")
            for nodeid in self.flaky:
                self.terminal.write_line(f"FLAKY {nodeid}")
        if not self._any_ran():
            self.terminal.write_line("FAILED: no test ran", red=True)
        return result

    def _any_ran(self) -> bool:
        kinds = ("passed", "failed", "error", "flaky", "xfailed", "xpassed")
        return self.config.option.collectonly or any(map(self.terminal.stats.get, kinds))

    def _try_again(self, session: pytest.Session) -> None:
        self.terminal.section(f"second try of {len(self.failed)} tests, alone")
        second = self._run_alone([*self.failed])
        for nodeid in [*self.failed]:
            reports = second.get(nodeid, [])
            again = [report.longreprtext for report in reports if report.failed]
            passed = any(report.when == "call" and report.passed for report in reports)
            if passed and not again:
                self._set_flaky(session, nodeid, reports)
            else:
                text = "\n".join(again) or "it did not run"
                self.failed[nodeid][0].sections.append(("second try", text))

    def _run_alone(self, nodeids: list[str]) -> dict[str, list[pytest.TestReport]]:
        option = self.config.option
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "reports.jsonl"
            path.touch()
            arguments = ["-q", "-p", "no:cacheprovider", "--tb=no", "-m", option.markexpr]
            arguments += ["--write-reports", str(path)]
            if timeout := getattr(option, "timeout", None):
                arguments += ["--timeout", str(timeout)]
            command = [sys.executable, "-m", "pytest", *arguments, *nodeids]
            subprocess.run(command, cwd=self.config.rootpath, check=False)
            lines = path.read_text().splitlines()
        found: dict[str, list[pytest.TestReport]] = defaultdict(list)
        for line in lines:
            report = self.config.hook.pytest_report_from_serializable(
                config=self.config, data=json.loads(line)
            )
            found[report.nodeid].append(report)
        return found

    def _set_flaky(
        self, session: pytest.Session, nodeid: str, reports: list[pytest.TestReport]
    ) -> None:
        """Replace the reports of the first try; what other plugins summarize is the second."""
        first = self.flaky[nodeid] = self.failed.pop(nodeid)
        session.testsfailed -= len(first)
        stats = self.terminal.stats
        for kind in ("failed", "error", "passed", ""):
            kept = [each for each in stats.get(kind, []) if getattr(each, "nodeid", None) != nodeid]
            if kept:
                stats[kind] = kept
            else:
                stats.pop(kind, None)
        for report in reports:
            stats.setdefault("flaky" if report.when == "call" else "", []).append(report)
