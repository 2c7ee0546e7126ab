"""The page in a real Chromium: what is seen, by mouse and by keyboard alone."""

from __future__ import annotations

import json

import pytest

from view_rig import grow
from web_rig import BROKEN, HOSTILE, Browser, Runs

KEYS = {"enter": "\ue007", "down": "\ue015", "escape": "\ue00c", "tab": "\ue004", "right": "\ue014"}
PIXELS = """
return [...document.querySelectorAll(arguments[0])].filter((canvas) => canvas.offsetParent).map((canvas) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height), colours = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) colours.add(data.slice(i, i + 3).join());
  return colours.size;
});
"""
"""How many colours each of the canvases shows; one that is blank has none."""


def plotted(browser: Browser) -> bool:
    return browser.js("return document.querySelectorAll('.grid .uplot').length") == 4


def opened(browser: Browser, place: str) -> None:
    browser.go(f"run/{place}")
    browser.until(lambda: plotted(browser), "the plots")


def test_the_list_and_the_way_into_a_run(browser: Browser, runs: Runs) -> None:
    browser.until(lambda: browser.text(".run-list").count("\n") > 8, "the list")
    text = browser.text(".run-list")
    for words in ("alive", "running", "done", "job 4711", "broken", "rank 2 failed first", "left"):
        assert words in text
    assert browser.js("return document.querySelectorAll('.run .spark path').length") == 3
    browser.js(
        "[...document.querySelectorAll('.segments button')].find((b) => b.textContent === 'Failed').click()"
    )
    assert browser.js("return document.querySelectorAll('.run').length") == 1
    browser.js("document.querySelector('.run .run-state').click()")
    browser.until(lambda: "Rank 2" in browser.text() or "broken" in browser.text("h1"), "the run")
    assert browser.js("return location.hash") == f"#/run/{runs.failed.id}"
    assert browser.complaints() == []


def test_plots_and_heat_map_are_drawn(browser: Browser, runs: Runs) -> None:
    opened(browser, runs.live.id)
    assert "The others wait for rank 2" in browser.text(".run-head")
    assert all(colours > 3 for colours in browser.js(PIXELS, ".grid .uplot canvas"))
    browser.until(lambda: browser.js("return document.body.dataset.heat") == "gpu", "the heat map")
    [colours] = browser.js(PIXELS, "canvas.heat")
    assert colours > 20
    assert "highest" in browser.text("#heat-words")
    assert "CPUs busy" in browser.text()
    browser.js("document.querySelector('.check input').click()")  # the log scale
    assert all(colours > 3 for colours in browser.js(PIXELS, ".grid .uplot canvas"))
    assert browser.complaints() == []


def test_the_crosshair_runs_through_all_plots(browser: Browser, runs: Runs) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, runs.live.id)
    [first, *_] = browser.driver.find_elements(By.CSS_SELECTOR, ".grid .u-over")
    ActionChains(browser.driver).move_to_element(first).perform()
    steps = "return [...document.querySelectorAll('.grid .legend .at')].map((at) => at.textContent)"
    browser.until(lambda: len({*browser.js(steps)}) == 1 and browser.js(steps)[0], "one step")
    at, plots = browser.js(steps)[0], browser.js("return document.body.dataset.plots")
    assert at.startswith("step ")
    grow(runs.live)
    browser.until(lambda: browser.js("return document.body.dataset.plots") != plots, "new plots")
    assert browser.js(steps)[0].startswith("step ")  # the mouse rests where it was


def test_every_heat_map_can_be_chosen_and_read_by_keys(browser: Browser, runs: Runs) -> None:
    opened(browser, runs.live.id)
    kinds = "[aria-label='Show'] button"
    browser.until(lambda: browser.js(f'return document.querySelectorAll("{kinds}").length') > 5)
    browser.js(
        f"[...document.querySelectorAll(\"{kinds}\")].find((b) => b.textContent === 'Waiting').click()"
    )
    browser.until(lambda: browser.js("return document.body.dataset.heat") == "wait", "the map")
    browser.js("document.querySelector('canvas.heat').focus()")
    browser.keys(KEYS["right"], KEYS["down"], KEYS["down"])
    assert browser.text(".tip").startswith("rank 2")
    assert "ms" in browser.text(".tip")


def test_what_a_run_adds_appears_by_itself(browser: Browser, runs: Runs) -> None:
    opened(browser, runs.live.id)
    before, loss = browser.text(".run-progress"), browser.text(".grid .legend output")
    assert loss == browser.text(".tiles dd")
    grow(runs.live, 2)  # a third window would show the same four digits
    browser.until(lambda: browser.text(".run-progress") != before, "the new step")
    browser.until(lambda: browser.text(".grid .legend output") != loss, "the new loss")
    assert browser.text(".grid .legend output") == browser.text(".tiles dd")
    assert browser.complaints() == []


def test_a_search_over_all_ranks(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.live.id}/logs")
    browser.until(lambda: "needle of rank three" in browser.text(".log"), "the last lines")
    assert "red and bold" in browser.text(".log")
    assert browser.js("return document.querySelector('.log .ansi-1').textContent") == "red"
    browser.keys("/", "step 20 ")
    browser.until(lambda: "found" in browser.text(".logs footer"), "an answer")
    browser.js("document.activeElement.select()")
    browser.keys("NEEDLE")
    browser.until(lambda: "1 line found" in browser.text(".logs footer"), "the line")
    assert browser.js("return document.querySelector('.log mark').textContent") == "needle"
    browser.js("document.querySelector('.log .when').click()")
    browser.until(lambda: browser.js("return document.querySelectorAll('.log-line').length") > 5)
    assert "needle" in browser.text(".log-line.marked")
    browser.driver.refresh()  # the address holds the line
    browser.until(lambda: "needle" in browser.text(".log-line.marked"), "the line after a reload")
    assert browser.complaints() == []


def test_errors_only_and_the_first_traceback(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.failed.id}/findings")
    browser.until(lambda: "Rank 2 failed first" in browser.text("#panel"), "the failure")
    assert "torch.OutOfMemoryError" in browser.text("#panel pre")
    browser.js("document.querySelector('#panel a').click()")
    browser.until(lambda: "OutOfMemoryError" in browser.text(".log"), "the errors")
    assert "step 10" not in browser.text(".log")


def test_attempts_and_job(browser: Browser, runs: Runs) -> None:
    browser.go(f"run/{runs.live.id}/attempts")
    browser.until(lambda: "timed out" in browser.text("#panel"), "the attempts")
    assert browser.js("return document.querySelectorAll('.life').length") == 2
    browser.go(f"run/{runs.live.id}/job")
    browser.until(lambda: "#SBATCH" in browser.text("#panel pre"), "the script")
    assert "command line" in browser.text("#panel")


def test_two_runs_compared(browser: Browser, runs: Runs) -> None:
    browser.until(lambda: browser.js("return document.querySelectorAll('.run').length") == 3)
    browser.js(
        "[...document.querySelectorAll('.run input')].slice(0, 2).forEach((box) => box.click())"
    )
    browser.js(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Compare 2').click()"
    )
    browser.until(lambda: browser.js("return document.body.dataset.compared") == "2", "both")
    browser.until(lambda: len(browser.js(PIXELS, ".uplot canvas")) == 2, "the plots")
    assert all(colours > 3 for colours in browser.js(PIXELS, ".uplot canvas"))
    assert "What differs" in browser.text()
    browser.js(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'By time').click()"
    )
    browser.until(lambda: "x=time" in browser.js("return location.hash"))
    assert browser.js("return document.querySelector('td.setting code').offsetWidth") < 400
    assert browser.complaints() == []


def test_by_keyboard_alone(browser: Browser, runs: Runs) -> None:
    browser.until(lambda: browser.js("return document.querySelectorAll('.run').length") == 3)
    browser.keys("?")
    assert browser.js("return document.getElementById('help').open")
    browser.keys(KEYS["escape"])
    browser.keys("/", "done", KEYS["down"])
    assert browser.js("return document.activeElement.textContent") == "done"
    outline = browser.js("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    browser.keys(KEYS["enter"])
    browser.until(lambda: browser.text("h1") == "done", "the run")
    browser.keys("2")
    browser.until(
        lambda: (
            browser.js("return document.querySelector('[aria-selected=true]').textContent")
            == "Logs"
        )
    )
    browser.keys(KEYS["escape"])
    browser.until(
        lambda: browser.js("return document.activeElement.textContent") == "done",
        "the row that one came from",
    )


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_dark_and_light_are_both_readable(browser: Browser, runs: Runs, scheme: str) -> None:
    browser.scheme(scheme)
    opened(browser, runs.live.id)
    contrast = browser.js(CONTRAST)
    assert {name: ratio for name, ratio in contrast.items() if ratio < 4.5} == {}
    dark = browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert dark == (scheme == "dark")
    browser.keys("t")  # the switch goes before the system
    assert browser.js("return document.documentElement.dataset.theme") != scheme


CONTRAST = """
const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const [r, g, b, a = 1] = rgb(getComputedStyle(node).backgroundColor);
    if (a > 0.9) return [r, g, b];
  }
  return [255, 255, 255];
};
const found = {};
const looked = ".note|.badge|.tiles dt|.tiles dd|.tabs a|.card h2|.segments button|.check|thead th|.notice";
for (const selector of looked.split("|")) {
  const node = document.querySelector(selector);
  if (!node) continue;
  const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
  found[selector] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return found;
"""


@pytest.mark.parametrize("width", [360, 400, 700, 1000])
def test_no_width_scrolls_sideways(browser: Browser, runs: Runs, width: int) -> None:
    browser.size(width, 800)
    for place in ("", f"run/{runs.live.id}", f"run/{runs.live.id}/logs", f"run/{runs.live.id}/job"):
        browser.go(place)
        shown = ".run" if not place else "#panel > *"
        browser.until(lambda shown=shown: browser.text(shown), place)
        if place == f"run/{runs.live.id}":
            browser.until(lambda: plotted(browser) and "GPU memory" in browser.text(), "the plots")
        assert browser.js("return document.scrollingElement.scrollWidth") <= width, place
    chosen = "return document.querySelector('[aria-selected=true]').getBoundingClientRect().right"
    assert browser.js(chosen) <= width  # the last tab, scrolled to where it is seen


def test_names_and_lines_stay_text(browser: Browser, runs: Runs) -> None:
    browser.until(lambda: BROKEN in browser.text(".run-list"), "the name")
    browser.go(f"run/{runs.failed.id}")
    browser.until(lambda: browser.text("h1") == BROKEN, "the title")
    browser.go(f"compare?runs={runs.failed.id}&runs={runs.done.id}")
    browser.until(lambda: browser.text(".legend").count(BROKEN) == 1, "the legend")
    browser.go(f"run/{runs.live.id}/logs")
    browser.until(lambda: HOSTILE in browser.text(".log"), "the line")
    assert browser.js("return window.hacked") is None
    assert browser.js("return document.querySelectorAll('img').length") == 0


def test_no_other_host_is_asked_and_nothing_stays_in_the_address(browser: Browser) -> None:
    asked = set()
    for entry in browser.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.add(message["params"]["request"]["url"])
    assert asked
    here = ("http://127.0.0.1:", "file:", "data:", "blob:")
    assert {url for url in asked if not url.startswith(here)} == set()
    assert "token" not in browser.js("return location.href")
    assert browser.js("return document.cookie") == ""  # no script can read it
