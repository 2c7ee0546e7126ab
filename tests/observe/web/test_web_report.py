"""The report of a run as a page of its own: made when it is asked for, kept nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from allranks.observe.web import child_processes
from view_rig import make_array
from web_rig import Browser, Runs, client_of


@pytest.fixture(scope="module")
def client(runs: Runs) -> TestClient:
    return client_of(runs.folder)


def test_it_is_made_and_the_folder_stays_as_it_is(client: TestClient, runs: Runs) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.done.path.rglob("*")}
    answer = client.get(f"/runs/{runs.done.id}/report")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "<title>done-" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert before == {path: path.stat().st_mtime_ns for path in runs.done.path.rglob("*")}


def test_who_may_not_look_gets_none(client: TestClient, runs: Runs) -> None:
    path = f"/runs/{runs.done.id}/report"
    assert client.get(path, headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.get("/runs/nothing/report").status_code == 404
    assert client.get(f"{path}?task=../x").status_code == 400


def test_a_task_of_an_array_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "sweep-1"
    path.mkdir()
    make_array(path, {"3": "finished", "4": "failed"})
    answer = client_of(tmp_path).get("/runs/sweep-1/report?task=3")
    assert answer.status_code == 200
    assert "completed" in answer.text


def test_one_that_takes_too_long_is_given_up(
    client: TestClient, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "REPORT_SECONDS", 0.001)
    answer = client.get(f"/runs/{runs.done.id}/report")
    assert answer.status_code == 504
    assert f"allranks report {runs.done.path}\n" in answer.text


def test_what_to_type_instead_is_quoted_and_names_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my runs" / "sweep-1"
    path.mkdir(parents=True)
    make_array(path, {"3": "finished", "4": "failed"})
    monkeypatch.setattr(child_processes, "REPORT_SECONDS", 0.001)
    answer = client_of(path.parent).get("/runs/sweep-1/report?task=3")
    assert f"allranks report '{path}' --task 3\n" in answer.text


def test_not_many_at_once(client: TestClient, runs: Runs) -> None:
    with child_processes._AT_ONCE, child_processes._AT_ONCE:
        assert client.get(f"/runs/{runs.done.id}/report").status_code == 503


def test_the_page_leads_to_it_and_nothing_in_it_is_refused(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.done.id}")
    browser.until(lambda: browser.text("a.report") == "Report", "the link")
    browser.driver.get(browser.js("return document.querySelector('a.report').href"))
    browser.until(lambda: "done" in browser.text("h1"), "the report")
    assert browser.js("return getComputedStyle(document.querySelector('main')).maxWidth") != "none"
    assert browser.complaints() == []
