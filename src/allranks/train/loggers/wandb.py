"""Weights & Biases, by its own settings: WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.packages import keep_id, load, need, resumed_id, save_weights


class WandbLogger(Logger):
    """One W&B run per run folder; a resumed run continues its own. Files lie in the run folder.

    The training step is an ordinary value and everything's axis: W&B's own counter may not go back,
    as it does when a run resumes from a checkpoint.
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
