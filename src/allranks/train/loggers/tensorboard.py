"""TensorBoard event files in the run folder: ``tensorboard --logdir runs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.train.loggers.base import Logger, RunInfo
from allranks.train.loggers.packages import flat, load, need


class TensorBoardLogger(Logger):
    """Scalars by step, figures, and the hyperparameters beside the last values."""

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
        """For the HPARAMS tab, into the run's own file; ``add_hparams`` would make a second run."""
        hparams = load("torch.utils.tensorboard.summary").hparams
        plain = (bool, int, float, str)
        kept = {k: v if isinstance(v, plain) else str(v) for k, v in self._hyperparams.items()}
        for summary in hparams(kept, dict.fromkeys(self._latest, 0.0)):
            self._writer.file_writer.add_summary(summary)
