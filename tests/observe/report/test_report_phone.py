"""The page in a real browser, as wide as a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.observe.report.report_files import report_run
from view_rig import make_run
from web_rig import Browser, missing

LINES = """return [...document.querySelectorAll('.scroll td')].map(cell =>
    cell.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight))"""
LETTERS = """return [...document.querySelectorAll('#plot-heat-gpu text')].map(text =>
    parseFloat(text.getBoundingClientRect().height))"""


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_tables_and_heat_maps_can_be_read_on_a_phone(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=8, windows=30, attempts=2, job_id="4711")
    (tmp_path / "report.html").write_text(report_run(run).text())
    browser = Browser()
    try:
        browser.size(375, 800)
        browser.driver.get((tmp_path / "report.html").as_uri())
        page = "document.documentElement"
        assert browser.js(f"return {page}.scrollWidth - {page}.clientWidth") == 0
        assert max(browser.js(LINES)) < 8  # a date in a few lines, never a letter in each
        assert min(browser.js(LETTERS)) > 9
    finally:
        browser.driver.quit()
