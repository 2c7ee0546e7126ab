"""TensorBoard, MLflow and W&B for real, where they are installed; nothing leaves the machine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from allranks.train.loggers import (
    Loggers,
    MLflowLogger,
    RunInfo,
    TensorBoardLogger,
    WandbLogger,
    make_loggers,
)

pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    folder = tmp_path / "net-001"
    folder.mkdir()
    return RunInfo(folder, "net", {"model": {"width": 64}, "act": "gelu"}, False, 2)


def resumed(run: RunInfo) -> RunInfo:
    return RunInfo(run.folder, run.name, run.hyperparams, True, run.world_size)


def figure() -> Any:
    pyplot = pytest.importorskip("matplotlib.figure")
    made = pyplot.Figure(figsize=(1, 1))
    made.subplots().plot([1, 2])
    return made


def fill(logger: Any, run: RunInfo, first: int = 1) -> None:
    """Start and log three steps with figures and a model; failures are raised, not warned of."""
    torch = pytest.importorskip("torch")
    logger.start(run)
    for step in range(first, first + 3):
        logger.log({"train_loss": 1 / step, "nan": math.nan}, step=step, epoch=1, kind="train")
    logger.figure("curve", figure(), step=first)
    logger.model(torch.nn.Linear(2, 2))


def test_tensorboard_events_can_be_read_back(run: RunInfo) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger()
    fill(logger, run)
    logger.close("finished")
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert events.Tags()["images"] == ["curve"]
    assert "hyperparams/text_summary" in events.Tags()["tensors"]
    assert len(list((run.folder / "tensorboard").iterdir())) == 1
    assert (
        "hparams" in events.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name
    )


def test_mlflow_keeps_one_run_over_a_resume(run: RunInfo, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    client.create_experiment("study", artifact_location=(tmp_path / "artifacts").as_uri())
    logger = MLflowLogger("study", uri)
    fill(logger, run)
    logger.close("failed")
    again = MLflowLogger("study", uri)
    fill(again, resumed(run), first=4)
    again.close("finished")

    experiment = client.get_experiment_by_name("study")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == "net-001"
    assert kept.data.params == {"model.width": "64", "act": "gelu", "world_size": "2"}
    history = client.get_metric_history(kept.info.run_id, "train_loss")
    assert sorted(each.step for each in history) == [1, 2, 3, 4, 5, 6]
    assert [each.path for each in client.list_artifacts(kept.info.run_id, "model")] == [
        "model/model.pt"
    ]
    assert len(client.list_artifacts(kept.info.run_id, "figures")) == 2


def test_wandb_runs_offline(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger()
    fill(logger, run)
    inner = logger._run
    assert (inner.project, inner.name) == ("net", "net-001")
    assert inner.summary["train_loss"] == pytest.approx(1 / 3)
    logger.close("finished")
    files = list(run.folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    assert files[0].stat().st_size > 0
    first = (run.folder / "wandb-run.txt").read_text()
    again = WandbLogger()
    again.start(resumed(run))
    assert f"{again._run.id}\n" == first
    again.close("failed")


def test_a_server_that_is_gone_does_not_end_the_run(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    told: list[str] = []
    loggers = Loggers(make_loggers(["mlflow"]), told.append)
    loggers.start(run)
    loggers.log({"x": 1.0}, step=1, epoch=1, kind="val")
    loggers.close("finished")
    assert len(told) == 1
    assert told[0].startswith("The mlflow logger failed")
    assert (run.folder / "metrics.jsonl").read_text().count("\n") == 1


def test_mlflow_raises_at_the_next_write_what_its_thread_met(run: RunInfo, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    logger = MLflowLogger("study", f"sqlite:///{tmp_path / 'mlflow.db'}")
    logger.start(run)
    logger._client.delete_run(logger._id)
    logger.log({"x": 1.0}, step=1, epoch=1, kind="train")
    with pytest.raises(Exception, match="active"):
        logger.close("finished")
