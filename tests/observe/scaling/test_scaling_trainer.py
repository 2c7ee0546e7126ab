"""What a study makes of a Trainer, and that it leaves others alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from allranks.errors import UsageError  # noqa: E402
from allranks.train import TrainConfig, Trainer  # noqa: E402
from allranks.train.scaling_mode import VARIABLE  # noqa: E402


def _trainer(**fields: Any) -> Trainer:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    return Trainer(model, optimizer, TrainConfig(**fields), scheduler=scheduler)


def test_outside_of_a_study_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    trainer = _trainer(epochs=3, max_val_batches=7)
    assert trainer.config == TrainConfig(epochs=3, max_val_batches=7)
    assert trainer.scheduler is not None


def test_a_study_is_short_and_writes_metrics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"steps": 40, "batch": "global"}))
    trainer = _trainer(epochs=3, val_every_steps=5, patience=2, lr_scaling="linear")
    config = trainer.config
    assert (config.max_steps, config.last_epoch) == (40, None)
    assert (config.checkpoint, config.resume) == (False, False)
    assert (config.val_every_steps, config.patience) == (None, None)
    assert (config.batch_size_is, config.lr_scaling) == ("global", "linear")
    assert config.log_every == 5
    assert config.max_val_batches == 1
    assert trainer.scheduler is None


def test_the_batch_stays_as_the_script_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"steps": 20}))
    assert _trainer(batch_size_is="global").config.batch_size_is == "global"


@pytest.mark.parametrize(
    ("steps", "own", "every"), [(20, 1, 5), (20, 50, 5), (200, 50, 20), (1000, 50, 50)]
)
def test_a_window_has_enough_steps_to_carry_what_is_done_once_in_it(
    steps: int, own: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"steps": steps}))
    assert _trainer(log_every=own).config.log_every == every


def test_a_variable_that_is_no_study_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(UsageError, match=VARIABLE):
        _trainer()
