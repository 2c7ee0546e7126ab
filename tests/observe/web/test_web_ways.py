"""Ways through the page: there and back again, and nothing that was chosen is lost on them."""

from __future__ import annotations

from itertools import pairwise

from allranks.cluster.slurm.job_states import JobState
from web_rig import Browser, Runs

ESCAPE = "\ue00c"


def test_an_ended_run_is_whole_at_the_second_visit(browser: Browser, runs: Runs) -> None:
    """Nothing has changed since the first: the server does not send it again."""
    for tab, words in (("attempts", "Outcome"), ("findings", "Rank 2 failed first")):
        for _ in range(2):
            browser.go(f"run/{runs.failed.id}/{tab}")
            browser.until(lambda words=words: words in browser.text("#panel"), tab)
            browser.go("")
            browser.until(lambda: browser.text(".run-list"), "the list")


def test_back_from_a_line_to_the_search(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.live.id}/logs?q=NEEDLE&ranks=2-3")
    browser.until(lambda: "1 line found" in browser.text(".logs footer"), "the line")
    browser.js("document.querySelector('.log .when').click()")
    browser.until(lambda: "needle" in browser.text(".log-line.marked"), "its neighbours")
    fields = "return [...document.querySelectorAll('.logs input.field')].map((each) => each.value)"
    assert browser.js(fields) == ["", "2-3"]
    browser.js("history.back()")
    browser.until(lambda: "1 line found" in browser.text(".logs footer"), "the search again")
    assert browser.js(fields) == ["NEEDLE", "2-3"]
    browser.go(f"run/{runs.live.id}/logs?errors=1")
    ticked = (
        "return [...document.querySelectorAll('.logs .check input')].map((each) => each.checked)"
    )
    browser.until(lambda: browser.js(ticked) == [False, False, True, True], "the tick")
    browser.go(f"run/{runs.live.id}/logs?stream=e")
    browser.until(lambda: "UserWarning" in browser.text(".log"), "the stream")
    assert browser.js(ticked) == [False, False, False, True]
    assert browser.js("return document.querySelector('.logs > .toolbar > select').value") == "e"
    browser.until(lambda: "step 10" not in browser.text(".log"), "no other stream")


def test_the_list_is_as_one_left_it(browser: Browser, runs: Runs) -> None:
    browser.until(lambda: browser.js("return document.querySelectorAll('.run').length") == 3)
    browser.keys("/", "done")
    browser.js("document.querySelector('.run input').click()")
    press = "[...document.querySelectorAll('.segments button')].find((b) => b.textContent === '{}')"
    browser.js(press.format("Completed") + ".click()")
    browser.js("document.querySelector('.run .run-state').click()")
    browser.until(lambda: browser.text("h1") == "done", "the run")
    browser.keys(ESCAPE)
    browser.until(lambda: browser.text(".compare") == "Compare 1", "the list")
    browser.until(lambda: browser.js("return document.querySelectorAll('.run').length") == 1)
    assert browser.js("return document.querySelector('.run input').checked")
    assert browser.js("return document.querySelector('input[type=search]').value") == "done"
    pressed = "return " + press.format("Completed") + ".getAttribute('aria-pressed')"
    assert browser.js(pressed) == "true"


def test_each_state_is_in_one_filter(browser: Browser) -> None:
    code = "const [names, done] = arguments; import('/static/js/parts.js')"
    code += ".then((parts) => done(names.map(parts.stateGroup)))"
    groups = browser.driver.execute_async_script(code, [state.value for state in JobState])
    found = dict(zip(JobState, groups, strict=True))
    assert {state for state, group in found.items() if group == "waiting"} == {
        JobState.PENDING, JobState.REQUEUED, JobState.SUSPENDED
    }  # fmt: skip
    for state in (JobState.INTERRUPTED, JobState.PREEMPTED, JobState.CANCELLED, JobState.UNKNOWN):
        assert found[state] == "other"
    assert set(groups) == {"running", "waiting", "completed", "failed", "other"}


def test_names_of_a_heat_map_keep_apart(browser: Browser) -> None:
    code = """
    const done = arguments[0];
    import('/static/js/charts/heat.js').then(({ Heat }) => {
      const heat = new Heat();
      heat.data = { rows: [...Array(256).keys()].map((rank) => `rank ${rank}`) };
      heat.slow = new Set(['rank 100']);
      done([...heat.named(1.4)]);
    });
    """
    places = dict(browser.driver.execute_async_script(code))
    assert 100 in places
    heights = sorted(places.values())
    assert heights[0] >= 7
    assert min(b - a for a, b in pairwise(heights)) >= 13
