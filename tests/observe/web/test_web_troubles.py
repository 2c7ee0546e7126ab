"""The page when something is not as it should be: a run that vanishes, a server that does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.observe.web.web_server import Address, _redirect_page
from allranks.runs.attempt import Attempt
from allranks.runs.run_folder import Run
from view_rig import grow, make_run
from web_rig import Browser, Runs, serving

ESCAPE = "\ue00c"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path, "here", windows=20, attempts=2, finished=False)


@pytest.fixture
def alone(
    the_browser: Browser, page: Address, run: Run, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Browser]:
    """At a server of its own that shows that run only, and never what it knew before."""
    for name in ("FRESH_SECONDS", "STATE_SECONDS"):
        monkeypatch.setattr(f"allranks.observe.web.request_cache.{name}", 0.0)
    with serving(run.path.parent) as address:
        the_browser.size(1280, 900)
        the_browser.open(address)
        yield the_browser
        the_browser.open(page)


def test_a_run_that_vanishes_is_not_called_alive(alone: Browser, run: Run) -> None:
    alone.go(f"run/{run.id}")
    alone.until(lambda: "running" in alone.text(".run-head .badge"), "the run")
    hidden = run.path.rename(run.path.with_name(".away"))
    alone.look()
    alone.until(lambda: alone.text("[role=alert]"), "the problem")
    assert alone.text(".run-head .badge") == "gone"
    assert "Step 200" in alone.text(".run-head")
    hidden.rename(run.path)
    alone.look()
    alone.until(lambda: alone.text(".run-head .badge") == "running", "the run again")
    assert alone.text("[role=alert]") == ""


def test_what_is_read_stays_where_it_is(alone: Browser, run: Run) -> None:
    alone.size(400, 800)
    alone.go(f"run/{run.id}")
    alone.until(lambda: "CPUs busy" in alone.text("#panel"), "the nodes")
    alone.js("window.box = [...document.querySelectorAll('.scroll')].at(-1); box.focus()")
    alone.js("box.scrollLeft = 40")
    grow(run, 3)
    alone.look()
    alone.until(lambda: not alone.js("return box.isConnected"), "another table")
    assert alone.js("return document.activeElement.scrollLeft") == 40


def test_the_last_lines_of_a_run_are_seen(alone: Browser, run: Run) -> None:
    """Those written between the last look and the moment in which it is told that it ended."""
    alone.go(f"run/{run.id}/logs")
    alone.until(lambda: "step 200" in alone.text(".log"), "the log")
    last = run.last_attempt
    assert last is not None
    last.finish(0, outcome="finished")
    with open(last.log_files()[0], "a") as file:
        file.write("2099-01-01T00:00:00.000000Z o goodbye\n")
    alone.look()
    alone.until(lambda: "goodbye" in alone.text(".log"), "the last line")


def test_a_task_of_an_array_is_chosen(alone: Browser, run: Run) -> None:
    edit(run.path / "run.json", array="5-6")
    edit(run.path / "attempts" / "1" / "end.json", next="stop")
    for number in (1, 2):
        edit(run.path / "attempts" / str(number) / "attempt.json", array_task=str(number + 4))
    alone.go(f"run/{run.id}/logs")
    alone.until(lambda: "task 6" in alone.text(".run-head"), "the task that began last")
    alone.until(lambda: "6:0" in alone.text(".log"), "its lines")
    assert alone.text(".tasks select").split("\n")[0] == "All tasks"
    alone.go(f"run/{run.id}/attempts")
    alone.until(lambda: alone.js("return document.querySelectorAll('tbody tr').length") == 2)
    alone.go(f"run/{run.id}")
    alone.until(lambda: "Task 6 (running)" in alone.text(".tasks"), "which one is shown")
    alone.go(f"run/{run.id}/job")
    alone.until(lambda: "Run folder" in alone.text("#panel"), "the job")
    assert "Task 6 (running)" in alone.text(".tasks")  # what ran is told of one task
    alone.go(f"run/{run.id}?task=5")
    alone.until(lambda: "Running or newest task" in alone.text(".tasks"), "the way back")
    Attempt.open(run.path / "attempts" / "2").finish(0, outcome="finished")
    alone.go(f"run/{run.id}")
    alone.until(lambda: "Task 6 (newest)" in alone.text(".tasks"), "its end")
    assert "1 task of the array did not end well: 5" in alone.text(".run-head")
    alone.go(f"run/{run.id}/logs")
    change = "const [box] = document.querySelectorAll('.tasks select'); box.value = '5'; "
    alone.js(change + "box.dispatchEvent(new Event('change'))")
    alone.until(lambda: "task 5" in alone.text(".run-head"), "the other task")
    alone.until(
        lambda: "5:0" in alone.text(".log") and "6:0" not in alone.text(".log"), "its lines"
    )
    assert alone.js("return location.hash").endswith("/logs?task=5")


def edit(path: Path, **values: str) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_is_not_known_of_a_gpu_is_no_number(browser: Browser) -> None:
    gpu = {"gpu": 0, "use": 0.5, "memory": None, "memory_total": 1e9, "power": None}
    node = {"node": 0, "host": "n", "time": 0, "cpu": None, "memory": None, "gpus": [gpu]}
    code = "const [look, done] = arguments; import('/static/js/views/nodes.js')"
    code += ".then((nodes) => done(nodes.nodesCard(look).querySelector('ul.gpus').textContent))"
    shown = browser.driver.execute_async_script(code, {"nodes": [node], "time": 0})
    assert shown == "50 %–"


def test_a_search_goes_on_when_its_first_turn_finds_nothing(
    browser: Browser, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.observe.web.log_pages.PATIENCE", 0.0)
    monkeypatch.setattr("allranks.observe.web.log_files.LogQuery.skip", lambda _: None)
    browser.go(f"run/{runs.live.id}/logs?q=NEEDLE")
    browser.until(lambda: "1 line found" in browser.text(".logs footer"), "the line")


def test_a_server_that_does_not_answer(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.live.id}")
    browser.until(lambda: "running" in browser.text(".run-head"), "the run")
    late = "AbortSignal.abort(new DOMException('late', 'TimeoutError'))"
    browser.js(f"AbortSignal.timeout = () => {late}")
    browser.look()
    browser.until(lambda: "No answer since" in browser.text("#link-state"), "the words")


def test_a_server_that_fails_is_not_waited_for(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.live.id}")
    browser.until(lambda: "running" in browser.text(".run-head"), "the run")
    browser.js("window.fetch = async () => new Response('', { status: 500 })")
    browser.js("location.hash = '#/'")
    browser.until(lambda: "The server answered 500" in browser.text("[role=alert]"), "the words")
    assert "Reading" not in browser.text()


def test_the_log_fills_the_window_and_its_text_stands_in_one_column(
    elsewhere: Callable[[Path], Browser], tmp_path: Path
) -> None:
    run = make_run(tmp_path, "wide", ranks=12, windows=20, attempts=2)
    browser = elsewhere(tmp_path)
    browser.go(f"run/{run.id}/logs")
    browser.until(lambda: "step 200" in browser.text(".log"), "the log")
    left = "(e) => Math.round(e.getBoundingClientRect().left)"
    assert len(set(browser.js(f"return [...document.querySelectorAll('.said')].map({left})"))) == 1
    height = "return document.scrollingElement.scrollHeight"
    browser.until(lambda: browser.js(height) <= 900, "a page that does not scroll")


def test_a_line_of_one_point_is_seen(elsewhere: Callable[[Path], Browser], tmp_path: Path) -> None:
    run = make_run(tmp_path, "begun", windows=1)
    browser = elsewhere(tmp_path)
    browser.go(f"run/{run.id}")
    browser.until(lambda: browser.js(POINT), "the point")


POINT = """
const canvas = document.querySelector(".grid .uplot canvas");
if (!canvas) return false;
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
copy.drawImage(canvas, 0, 0);
const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
for (let i = 0; i < data.length; i += 4) {
  if (data[i + 3] > 100 && data[i + 2] - data[i] > 90) return true;
}
return false;
"""
"""Whether anything blue is drawn: the line is, the axes are grey."""


def test_a_run_that_is_not_there(browser: Browser) -> None:
    for name in ("nothing", "%E0%A4"):
        browser.go(f"run/{name}")
        browser.driver.refresh()
        browser.until(lambda: "There is no run" in browser.text("[role=alert]"), "the problem")
        assert "Reading" not in browser.text()


def test_a_comparison_without_one_of_its_runs(browser: Browser, runs: Runs) -> None:
    browser.go(f"compare?runs={runs.done.id}&runs=gone,too")
    browser.until(lambda: "gone,too" in browser.text("[role=alert]"), "the problem")
    browser.until(lambda: "done" in browser.text(".legend"), "the other")


def test_keys_that_leave_the_view_alone(browser: Browser, runs: Runs) -> None:
    place = f"#/run/{runs.live.id}/logs"
    browser.go(place.removeprefix("#/"))
    browser.until(lambda: "step" in browser.text(".log"), "the log")
    browser.js("document.querySelector('#panel select').focus()")
    browser.keys(ESCAPE)
    browser.js("document.querySelector('.skip').click()")
    assert browser.js("return document.activeElement.id") == "view"
    assert browser.js("return location.hash") == place


def test_the_file_that_leads_a_browser_to_the_page(browser: Browser, page: Address) -> None:
    browser.driver.delete_all_cookies()
    browser.driver.get(_redirect_page(page.url).as_uri())
    browser.until(lambda: "alive" in browser.text(".run-list"), "the list")
    assert "token" not in browser.js("return location.href")
