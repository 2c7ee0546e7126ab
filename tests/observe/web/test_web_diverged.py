"""A training whose loss is no number any more: told wherever its loss is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.runs.run_folder import Run
from view_rig import make_run
from web_rig import Browser, client_of


def diverge(run: Run, after: int) -> Run:
    """As the Trainer writes it: null, and the name in "nonfinite"."""
    path = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["step"] > after and "train_loss" in row:
            row |= {"train_loss": None, "nonfinite": ["train_loss"]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diverged")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return diverge(make_run(folder, "diverged", windows=60), after=110)


def test_the_numbers_say_it(folder: Path, run: Run) -> None:
    client = client_of(folder)
    [row] = client.get("/api/runs").json()["runs"]
    assert row["diverged"] is True
    plots = client.get(f"/api/runs/{run.id}/plots").json()
    assert plots["nonfinite"] == {"train_loss": [120, 600]}
    assert plots["series"]["train_loss"][0][-1] == 110
    by_time = client.get("/api/compare", params={"runs": run.id, "x": "time"}).json()
    begin, end = by_time["nonfinite"][run.id]["train_loss"]
    assert by_time["curves"][run.id]["train_loss"][0][-1] < begin < end


def test_a_loss_that_never_was_a_number(tmp_path: Path) -> None:
    run = diverge(make_run(tmp_path, "never", windows=5), after=0)
    client = client_of(tmp_path)
    plots = client.get(f"/api/runs/{run.id}/plots").json()
    assert plots["series"]["train_loss"] == [[], []]
    assert plots["nonfinite"] == {"train_loss": [10, 50]}
    found = client.get("/api/compare", params={"runs": run.id}).json()
    assert "train_loss" in {row["name"] for row in found["last"]}


def test_one_that_is_a_number_again_has_recovered(tmp_path: Path) -> None:
    run = diverge(make_run(tmp_path, "recovered", windows=5), after=0)
    line = {"kind": "train", "time": 2e9, "step": 60, "train_loss": 1.5}
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    client = client_of(tmp_path)
    assert client.get(f"/api/runs/{run.id}/plots").json()["nonfinite"] == {}
    assert client.get("/api/runs").json()["runs"][0]["diverged"] is False


def test_the_page_says_it(elsewhere: Callable[[Path], Browser], folder: Path, run: Run) -> None:
    browser = elsewhere(folder)
    browser.until(lambda: "NaN" in browser.text(".run-loss"), "the row")
    browser.go(f"run/{run.id}")
    browser.until(lambda: browser.text(".grid .legend output") == "NaN", "the legend")
    assert browser.text(".tiles dd.late") == "NaN"
    assert browser.js(BAND, "--bad-soft") > 0.5, "no band from there to the last step"
    zoom_in(browser)
    browser.until(lambda: browser.js(BAND, "--bad-soft") == 0, "the steps before it")
    assert browser.js(BAND, "--bad") == 0
    browser.go(f"compare?runs={run.id}")
    browser.until(lambda: "NaN" in browser.text(".legend"), "the comparison")
    assert browser.text("tbody td") == "NaN"
    assert browser.complaints() == []


def zoom_in(browser: Browser) -> None:
    """Drag over the first tenth of the loss, long before it is lost."""
    from selenium.webdriver import ActionChains

    plot = browser.driver.find_element("css selector", ".grid .uplot .u-over")
    wide = plot.size["width"]
    drag = ActionChains(browser.driver).move_to_element_with_offset(plot, -wide // 2 + 4, 0)
    drag.click_and_hold().move_by_offset(wide // 10, 0).release().perform()


BAND = """
const name = getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim();
const wanted = [1, 3, 5].map((at) => parseInt(name.slice(at, at + 2), 16));
const canvas = document.querySelector(".grid .uplot canvas");
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
copy.drawImage(canvas, 0, 0);
const { data } = copy.getImageData(0, canvas.height / 2 | 0, canvas.width, 1);
let count = 0;
for (let i = 0; i < data.length; i += 4) count += wanted.every((value, at) => data[i + at] === value);
return count / canvas.width;
"""
"""How much of the plot's width has that colour."""
