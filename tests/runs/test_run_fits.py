"""A script that trains twice: its attempts tell which of the two trainings they are at."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from allranks import TrainConfig, Trainer  # noqa: E402
from allranks.runs.metrics_tables import Metrics  # noqa: E402
from allranks.runs.progress_file import AttemptProgress  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> Path:
    path = tmp_path / "attempts" / "1"
    path.mkdir(parents=True)
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(path))
    return path


class Look(Callback):
    """What is noted when a training begins."""

    def __init__(self, attempt: Path) -> None:
        self.attempt, self.seen = attempt, []

    def on_fit_start(self, trainer: Trainer) -> None:
        told = AttemptProgress.read(self.attempt)
        assert told is not None
        self.seen.append((told.fit, told.first_step, told.saved_step))


def test_progress_names_the_fit_and_begins_anew_with_it(attempt: Path) -> None:
    look = Look(attempt)
    for epochs in (2, 1):
        model = nn.Linear(1, 1)
        data = DataLoader(TensorDataset(torch.rand(8, 1), torch.rand(8, 1)), batch_size=4)
        config = TrainConfig(
            epochs=epochs, progress=False, verbose=False, compute_setup="cpu", loggers=["csv"]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, optimizer, config, loss_fn="mse", callbacks=[look]).fit(data)
    assert look.seen == [(1, 0, None), (2, 0, None)]
    last = AttemptProgress.read(attempt)
    assert last is not None
    assert (last.fit, last.step, last.saved_step) == (2, 2, 2)
    metrics = Metrics(attempt.parent.parent)
    assert metrics.columns("train", ["fit", "step"]) == {"fit": [1, 1, 2], "step": [2, 4, 2]}
    assert metrics.columns("epoch", "fit") == {"fit": [1, 1, 2]}
    ranks = metrics.columns("ranks", ["fit", "epoch"])
    assert set(zip(ranks["fit"], ranks["epoch"], strict=True)) >= {(1, 2), (2, 1)}
    table = list(csv.DictReader((attempt.parent.parent / "metrics.csv").open()))
    assert [row["fit"] for row in table if row["kind"] == "epoch"] == ["1", "1", "2"]
    picture = (attempt.parent.parent / "curve.svg").read_text()
    assert (picture.count("<polyline"), picture.count("<circle")) == (1, 1), "no line between fits"
