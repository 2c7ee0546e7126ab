"""How long the page takes to show a big run, in a real Chromium.

    python bench/web.py [--windows 10000] [--ranks 256] [--rounds 3]

A run is generated, the server is started as a user starts it, and the browser's own clock says how
long it took from the navigation to the first plot, to all plots, and to the heat map. The first round
finds a server that has read nothing; later ones find what it holds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from view_rig import make_run

WATCH = """
window.drawn = {};
const note = (name) => { window.drawn[name] ??= performance.now(); };
const look = () => {
  const plots = document.querySelectorAll(".grid .uplot canvas").length;
  if (plots >= 1) note("first");
  if (plots >= 4) note("all");
  if (document.body?.dataset.heat) note("heat");
  if (!window.drawn.heat) requestAnimationFrame(look);
};
look();
"""
BYTES = """
const entries = performance.getEntriesByType("resource");
const sum = (wanted) => entries.filter(wanted).reduce((all, one) => all + one.transferSize, 0);
return {
  api: sum((one) => one.name.includes("/api/")),
  page: sum((one) => !one.name.includes("/api/")),
  requests: entries.length,
};
"""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = make_run(
            Path(folder), "big", windows=options.windows, ranks=options.ranks, gpus_per_node=8
        )
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
        print(
            f"{options.windows} windows × {options.ranks} ranks: {size / 1e6:.0f} MB, "
            f"made in {time.perf_counter() - began:.1f} s\n"
        )
        with browser() as driver:
            rounds = [measure(driver, run.path) for _ in range(options.rounds)]
    _print([one for pair in rounds for one in pair])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def measure(driver: Any, folder: Path) -> list[dict[str, Any]]:
    """A cold look, with a server that was just started, and a warm one."""
    with server(folder) as address:
        return [{"kind": kind, **look(driver, address)} for kind in ("cold", "warm")]


def look(driver: Any, address: str) -> dict[str, float]:
    """Milliseconds from the navigation, by the browser's clock."""
    driver.get("about:blank")
    driver.get(address)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        drawn = driver.execute_script("return window.drawn || {}")
        if "heat" in drawn and "all" in drawn:
            time.sleep(0.2)
            return {**drawn, **driver.execute_script(BYTES)}
        time.sleep(0.05)
    raise SystemExit(f"not everything was drawn within a minute: {drawn}")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The command itself."""
    words = [
        sys.executable,
        "-m",
        "allranks",
        "web",
        "--json",
        "--no-open",
        "--port",
        "0",
        str(folder),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without a window; the clock is set in every page before its own scripts."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(word)
    found = shutil.which("chromedriver")
    if not found:
        raise SystemExit("There is no chromedriver here: apt install chromium chromium-driver")
    driver = webdriver.Chrome(options=options, service=Service(found))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    try:
        yield driver
    finally:
        driver.quit()


def _print(rows: list[dict[str, Any]]) -> None:
    print("| server | first plot ms | all plots ms | heat map ms | API kB | page kB | requests |")
    print("|---|---|---|---|---|---|---|")
    for kind in ("cold", "warm"):
        of_kind = [row for row in rows if row["kind"] == kind]
        cells = [_spread(of_kind, name, 1) for name in ("first", "all", "heat")]
        cells += [_spread(of_kind, name, 1000) for name in ("api", "page")]
        cells.append(_spread(of_kind, "requests", 1))
        print(f"| {kind} | {' | '.join(cells)} |")


def _spread(rows: list[dict[str, Any]], name: str, unit: float) -> str:
    values = [row[name] / unit for row in rows]
    return f"{statistics.median(values):.0f} ({min(values):.0f}–{max(values):.0f})"


if __name__ == "__main__":
    main()
