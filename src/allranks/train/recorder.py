"""From a window of steps to numbers in files: sent off at one log step, written at the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from allranks.train.meter import Late, Meter, Reading, Sums
from allranks.train.session import Session
from allranks.train.stepping import Parts

if TYPE_CHECKING:
    from allranks.train.trainer import Trainer


class Recorder:
    """Turns the meter's readings into training metrics, late enough that nothing waits for them."""

    def __init__(self, trainer: Trainer, parts: Parts, meter: Meter, session: Session) -> None:
        self._trainer = trainer
        self._parts = parts
        self._meter = meter
        self._session = session
        self._pending: tuple[Reading, dict[str, Any]] | None = None
        self._epoch_sums = Sums()
        self._logged_at = (time.perf_counter(), trainer.state.step)
        self._warned = False

    def begin_epoch(self) -> None:
        """Forget the last epoch's sums; one that goes on after a resumption has those before it."""
        before, self._trainer._resumed_sums = self._trainer._resumed_sums, {}
        self._epoch_sums = Sums(before)

    @property
    def sums(self) -> dict[str, tuple[float, float]]:
        """Of this epoch so far, for a checkpoint."""
        return dict(self._epoch_sums.totals)

    def epoch_means(self) -> dict[str, float]:
        """Of all samples of this epoch that were recorded."""
        return self._epoch_sums.means()

    def record(self, *, final: bool = False) -> None:
        """Send this window's numbers off and write down those of the one before.

        ``final`` reads them at once: at the end of an epoch.
        """
        state, session = self._trainer.state, self._session
        now = time.perf_counter()
        seconds, steps = now - self._logged_at[0], state.step - self._logged_at[1]
        about: dict[str, Any] = {"step": state.step, "epoch": state.epoch, **self._rates()}
        if steps and seconds > 0 and state.samples_per_step:
            about["samples_per_second"] = steps * state.samples_per_step / seconds
        if self._parts.grad_norm is not None:
            about["grad_norm"] = Late(self._parts.grad_norm)
        self._logged_at = (now, state.step)
        reading = self._meter.flush()
        self.settle()
        self._pending = (reading, about)
        if final or session.device.type == "cpu":  # nothing to wait for
            self.settle()

    def settle(self) -> None:
        """Read the numbers that are under way and give them to the loggers."""
        if self._pending is None:
            return
        reading, about = self._pending
        self._pending = None
        means = reading.means()
        if not means:
            return
        self._epoch_sums.add(reading)
        step, epoch = about.pop("step"), about.pop("epoch")
        values = {f"train_{name}": value for name, value in means.items()}
        values |= {name: float(value) for name, value in about.items()}
        self._check_finite(values["train_loss"], step)
        self._trainer.state.values["loss"] = values["train_loss"]
        self._trainer._write(values, kind="train", step=step, epoch=epoch)

    def _check_finite(self, loss: float, step: int) -> None:
        if loss - loss == 0 or self._warned:
            return
        self._warned = True
        self._trainer.say(
            f"WARNING: the loss is {loss} at step {step} or up to {self._trainer.config.log_every} steps "
            "before. Lower the learning rate, clip gradients (clip_norm=1.0), or look at the data."
        )

    def _rates(self) -> dict[str, float]:
        """The learning rates: ``lr``, or ``lr_<name>`` with several optimizers."""
        parts = self._parts
        factor = parts.warmup.factor(parts.steps_done) if parts.warmup is not None else 1.0
        if len(parts.optimizers) == 1:
            return {"lr": float(parts.optimizers[0].param_groups[0]["lr"]) * factor}
        pairs = zip(parts.names, parts.optimizers, strict=True)
        return {f"lr_{name}": float(o.param_groups[0]["lr"]) * factor for name, o in pairs}
