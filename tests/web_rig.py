"""What the tests of the page share: a server in this process, and one Chromium for all of them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from allranks.observe.web.catalogue import Catalogue
from allranks.observe.web.web_server import Address, listen, make_app
from allranks.runs.run_folder import Run
from command_rig import until
from view_rig import make_run

TOKEN = "the-token-of-the-tests"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
BROKEN = f"broken {HOSTILE}"
"""The name of the run that failed."""


class Runs:
    """What the page of the tests shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = make_run(
            folder, "alive", ranks=4, windows=60, attempts=2, slow_rank=2, finished=False
        )
        self.done = make_run(
            folder / "below" / "deeper", "done", ranks=2, windows=30, job_id="4711"
        )
        self.failed = make_run(folder, "broken", ranks=4, windows=20, failed=True)
        about = self.failed.path / "run.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"name": BROKEN}))
        _add_line(self.live, 3, f"needle of rank three {HOSTILE}")
        _add_line(self.live, 1, "\x1b[31mred\x1b[0m and \x1b[1mbold\x1b[0m \x07 bell")


def _add_line(run: Run, rank: int, text: str) -> None:
    last = run.last_attempt
    assert last is not None
    with open(last.log_files()[rank], "a") as file:
        file.write(f"2099-01-01T00:00:00.{rank:06}Z o {text}\n")


@contextmanager
def serving(*folders: Path) -> Iterator[Address]:
    """The page over the runs below these folders, on a free port."""
    import uvicorn

    listening = listen("127.0.0.1", 0)
    app = make_app(Catalogue([str(folder) for folder in folders]), TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", listening.getsockname()[1], TOKEN)
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def client_of(*places: Path) -> TestClient:
    """Asks the server over the runs below these folders, with the token."""
    app = make_app(Catalogue([str(place) for place in places]), TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(app, base_url="http://localhost", headers=bearer)


class Browser:
    """A Chromium without a window, and the few things that the tests do with it."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(
            options=options, service=Service(shutil.which("chromedriver"))
        )
        self.address = ""

    def open(self, address: Address) -> None:
        """The first visit, with the token."""
        self.address = f"http://127.0.0.1:{address.port}/"
        self.driver.get(address.url)

    def go(self, place: str) -> None:
        """To a view of the page: ``run/<id>/logs``."""
        self.driver.get(f"{self.address}#/{place}")

    def size(self, width: int, height: int, *, phone: bool = False, dense: float = 1) -> None:
        about = {"width": width, "height": height, "deviceScaleFactor": dense, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", about)

    def scheme(self, name: str) -> None:
        """``dark`` or ``light``, as the system says it."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, code: str, *values: object) -> Any:
        return self.driver.execute_script(code, *values)

    def text(self, selector: str = "body") -> str:
        """What is to be read there; empty when there is no such thing."""
        found = self.js("return document.querySelector(arguments[0])?.innerText", selector)
        return str(found or "")

    def keys(self, *keys: str) -> None:
        """Typed, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def until(self, true: Callable[[], object], what: str = "it", seconds: float = 15) -> None:
        """Wait for something that must happen."""
        until(true, seconds, lambda: f"{what}; the page reads:\n{self.text()}")

    def look(self) -> None:
        """Ask the server now, not at the next turn."""
        self.js("document.dispatchEvent(new Event('visibilitychange'))")

    def complaints(self) -> list[str]:
        """What the console said since the last time."""
        found = self.driver.get_log("browser")
        return [one["message"] for one in found if one["level"] in ("SEVERE", "WARNING")]


def missing() -> str:
    """Why there can be no browser here; empty when there can."""
    names = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"not installed here: {', '.join(names)} (scripts/system-packages)" if names else ""
