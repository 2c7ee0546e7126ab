"""Some runs, the page over them, and one browser for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.observe.web.web_server import Address
from web_rig import Browser, Runs, missing, serving


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("web") / "runs")


@pytest.fixture(scope="session")
def page(runs: Runs) -> Iterator[Address]:
    with serving(runs.folder) as address:
        yield address


@pytest.fixture(scope="session")
def the_browser(page: Address) -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    browser = Browser()
    browser.open(page)
    yield browser
    browser.driver.quit()


@pytest.fixture
def elsewhere(the_browser: Browser, page: Address) -> Iterator[Callable[[Path], Browser]]:
    """The browser at a server of its own over the runs below a folder; afterwards it is back."""
    with ExitStack() as servers:

        def opened(folder: Path) -> Browser:
            the_browser.size(1280, 900)
            the_browser.open(servers.enter_context(serving(folder)))
            the_browser.complaints()
            return the_browser

        yield opened
        the_browser.open(page)


@pytest.fixture
def browser(the_browser: Browser) -> Browser:
    """At its usual size and theme, with an empty console."""
    the_browser.size(1280, 900)
    the_browser.scheme("light")
    the_browser.go("")
    the_browser.js("localStorage.clear()")
    the_browser.driver.refresh()
    the_browser.complaints()
    return the_browser
