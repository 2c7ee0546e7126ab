"""Experiment trackers, each configured by its own settings: MLflow, TensorBoard, Weights & Biases."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.logger_registry import (
    flat,
    keep_id,
    load,
    need,
    resumed_id,
    save_weights,
)

_STATUS = {
    "finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "SCHEDULED",
}  # fmt: skip
_LONGEST = 6000  # characters of a parameter's value that MLflow takes


class MLflowLogger(Logger):
    """One MLflow run per run folder; a resumed run continues its own.

    Configured by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. It uses a client rather than MLflow's
    active run, so that it does not interfere with the user's own calls. A thread sends metrics in batches:
    a slow server does not hold up the training. Its errors are raised by the next ``log``.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        need(self.name, "mlflow")
        self._experiment, self._uri = experiment, tracking_uri
        self._folder = Path()
        self._client: Any = None
        self._id = ""
        self._waiting: deque[Any] = deque()
        self._sender: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def start(self, run: RunInfo) -> None:
        self._folder = run.folder
        self._client = load("mlflow").MlflowClient(tracking_uri=self._uri)
        self._sender = ThreadPoolExecutor(1, "allranks-mlflow")
        known = resumed_id(run.folder, self.name, run.resumed)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return
        made = self._client.create_run(self._experiment_id(run.name), run_name=run.folder.name)
        self._id = made.info.run_id
        keep_id(run.folder, self.name, self._id)
        self._log_params(run)

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        metric = load("mlflow.entities").Metric
        now = int(time.time() * 1000)
        rows = {**values, "epoch": epoch}
        self._waiting.extend(metric(name, float(value), now, step) for name, value in rows.items())
        if self._sending is None or self._sending.done():
            self._wait_until_sent()
            if self._sender is not None:
                self._sending = self._sender.submit(self._send)

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        if hasattr(figure, "savefig"):
            self._client.log_figure(self._id, figure, f"figures/{name}-{step}.png")

    def model(self, model: Any) -> None:
        path = save_weights(model, self._folder)
        self._client.log_artifact(self._id, str(path), "model")

    def close(self, status: str) -> None:
        if self._client is None:
            return
        try:
            self._wait_until_sent()
            self._send()
            self._client.set_terminated(self._id, _STATUS[status])
        finally:
            if self._sender is not None:
                self._sender.shutdown(wait=False, cancel_futures=True)

    def _send(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), 1000)  # the most that one request may hold
            self._client.log_batch(self._id, [self._waiting.popleft() for _ in range(count)])

    def _wait_until_sent(self) -> None:
        """Wait for the thread and raise its error."""
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def _experiment_id(self, name: str) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
        there = self._client.get_experiment_by_name(name)
        return str(there.experiment_id if there else self._client.create_experiment(name))

    def _log_params(self, run: RunInfo) -> None:
        param = load("mlflow.entities").Param
        values = {**flat(run.hyperparams), "world_size": run.world_size}
        params = [param(name, str(value)[:_LONGEST]) for name, value in values.items()]
        for first in range(0, len(params), 100):  # the same limit
            self._client.log_batch(self._id, params=params[first : first + 100])


class TensorBoardLogger(Logger):
    """Scalars by step, figures and hyperparameters: ``tensorboard --logdir runs``."""

    name = "tensorboard"

    def __init__(self) -> None:
        need(self.name, "tensorboard")
        self._writer: Any = None
        self._hyperparams: dict[str, Any] = {}
        self._latest: dict[str, float] = {}

    def start(self, run: RunInfo) -> None:
        module = load("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(
            str(run.folder / "tensorboard"),
            flush_secs=10,
            purge_step=None if run.logged is None else run.step + 1,
        )
        self._hyperparams = flat(run.hyperparams)
        if self._hyperparams:
            rows = [f"| {name} | {value} |" for name, value in self._hyperparams.items()]
            self._writer.add_text(
                "hyperparams", "\n".join(["| name | value |", "|---|---|", *rows])
            )

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.add_scalar("epoch", epoch, step)
        self._latest.update(values)

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        if hasattr(figure, "savefig"):
            self._writer.add_figure(name, figure, step, close=False)

    def close(self, status: str) -> None:
        if self._writer is None:
            return
        if self._hyperparams and self._latest:
            self._write_hyperparams()
        self._writer.close()

    def _write_hyperparams(self) -> None:
        """Fill the HPARAMS tab from the run's own file; ``add_hparams`` would make a second run."""
        hparams = load("torch.utils.tensorboard.summary").hparams
        plain = (bool, int, float, str)
        kept = {k: v if isinstance(v, plain) else str(v) for k, v in self._hyperparams.items()}
        for summary in hparams(kept, dict.fromkeys(self._latest, 0.0)):
            self._writer.file_writer.add_summary(summary)


class WandbLogger(Logger):
    """One W&B run per run folder; a resumed run continues its own. Its files are in the run folder.

    Configured by WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY. The training step is an ordinary value
    and the x axis: W&B's own counter must not decrease, as it would when a run resumes from a checkpoint.
    """

    name = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        need(self.name, "wandb")
        self._project, self._options = project, options
        self._folder = Path()
        self._run: Any = None

    def start(self, run: RunInfo) -> None:
        self._folder = run.folder
        settings = {
            "project": self._project or os.environ.get("WANDB_PROJECT") or run.name,
            "name": os.environ.get("WANDB_NAME") or run.folder.name,
            "dir": str(run.folder),
            "config": {**run.hyperparams, "world_size": run.world_size},
            "id": resumed_id(run.folder, self.name, run.resumed),
            "resume": "allow",
        }
        self._run = load("wandb").init(**{**settings, **self._options})
        keep_id(run.folder, self.name, str(self._run.id))
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], *, step: int, epoch: int, kind: str) -> None:
        self._run.log({**values, "epoch": epoch, "step": step})

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        image = load("wandb").Image(figure) if hasattr(figure, "savefig") else figure
        self._run.log({name: image, "step": step})

    def model(self, model: Any) -> None:
        path = save_weights(model, self._folder)
        artifact = load("wandb").Artifact(f"model-{self._run.id}", type="model")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, status: str) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if status == "failed" else 0)
