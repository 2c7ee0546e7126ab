"""What the training library offers is named on the page where users look for it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from allranks import Trainer  # noqa: E402
from allranks.train import callbacks as callbacks  # noqa: E402
from allranks.train import data as data  # noqa: E402
from allranks.train import loggers as loggers  # noqa: E402
from allranks.train.config import TrainConfig  # noqa: E402
from allranks.train.custom_loop import Prepared  # noqa: E402
from allranks.train.loggers.logger_registry import KINDS  # noqa: E402
from allranks.train.step.loss_module import LOSSES  # noqa: E402
from allranks.train.strategies import StrategyOptions  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
INSIDE = {
    *("AuditReport", "DistributedLoader", "LoaderOptions", "BatchWeight", "distribute_loader"),
    *("EVENTS", "Callbacks", "TrainerView"),
    *("JsonlLogger", "Loggers", "RunInfo", "make_loggers"),
    "is_gradient_free",
}
"""Names that the packages share with each other; users need none of them."""


def _missing(page: str, names: list[str]) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    return [name for name in names if name not in words and name not in INSIDE]


def test_fields_are_explained_beyond_the_reference() -> None:
    pages = ("training.md", "data.md", "strategies.md", "callbacks.md", "own-loop.md")
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    missing = [set(_missing(page, names)) for page in pages]
    assert not set.intersection(*missing)


def test_the_trainer_and_its_arguments() -> None:
    own = [name for name in vars(Trainer) if not name.startswith("_")]
    given = [*inspect.signature(Trainer).parameters]
    assert not _missing("training.md", [*own, *given, *LOSSES])


def test_the_data() -> None:
    assert not _missing("data.md", list(data.__all__))


def test_the_options_of_strategies() -> None:
    names = [field.name for field in dataclasses.fields(StrategyOptions)]
    assert not _missing("strategies.md", names)


def test_callbacks_events_and_loggers() -> None:
    names = [*callbacks.__all__, *callbacks.EVENTS, *loggers.__all__, *KINDS]
    assert not _missing("callbacks.md", names)


def test_arguments_of_callbacks() -> None:
    kinds = [getattr(callbacks, name) for name in callbacks.__all__]
    classes = [kind for kind in kinds if inspect.isclass(kind) and kind.__name__ not in INSIDE]
    names = [name for kind in classes for name in inspect.signature(kind).parameters]
    assert not _missing("callbacks.md", names)


def test_what_prepare_gives() -> None:
    own = [name for name in vars(Prepared) if not name.startswith("_")]
    assert not _missing("own-loop.md", own)
