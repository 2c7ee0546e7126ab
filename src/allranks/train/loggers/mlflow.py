"""MLflow, by its own settings: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.packages import flat, keep_id, load, need, resumed_id, save_weights

_STATUS = {
    "finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "SCHEDULED",
}  # fmt: skip
_LONGEST = 6000  # characters of a parameter's value that MLflow takes


class MLflowLogger(Logger):
    """One MLflow run per run folder; a resumed run continues its own.

    It uses a client rather than MLflow's active run, so that it does not mix with calls of the user's.
    Metrics are sent by a thread, as many at once as have come together: a slow server does not hold
    up the training. What it failed with is raised by the next ``log``.
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
            self._sent()
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
            self._sent()
            self._send()
            self._client.set_terminated(self._id, _STATUS[status])
        finally:
            if self._sender is not None:
                self._sender.shutdown(wait=False, cancel_futures=True)

    def _send(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), 1000)  # the most that one request may hold
            self._client.log_batch(self._id, [self._waiting.popleft() for _ in range(count)])

    def _sent(self) -> None:
        """Wait for the thread; raises what it met."""
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
        for first in range(0, len(params), 100):  # likewise
            self._client.log_batch(self._id, params=params[first : first + 100])
