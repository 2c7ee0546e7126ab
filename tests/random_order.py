"""Pytest plugin: ``--random-order`` shuffles the test files, and the tests of each file."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random order")
    group.addoption("--random-order", action="store_true", help="run the tests in random order")
    group.addoption("--random-seed", metavar="SEED", help="the random order that printed this seed")


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get("random_seed")
    if given is not None:
        config.option.random_seed = given
    elif config.option.random_order and config.option.random_seed is None:
        config.option.random_seed = str(random.randrange(1 << 30))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the workers of pytest-xdist the same seed: they must agree on the order."""
    node.workerinput["random_seed"] = node.config.option.random_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.option.random_seed
    return None if seed is None else f"random order: --random-seed {seed}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.random_seed is None:
        return
    dice = random.Random(config.option.random_seed)
    files = [[*tests] for _, tests in groupby(items, key=lambda item: item.path)]
    dice.shuffle(files)
    for tests in files:
        dice.shuffle(tests)
    items[:] = [test for tests in files for test in tests]
