"""From a window of steps to numbers in files: sent off at one log step, written at the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allranks.train.folder import fit_number, present_attempt
from allranks.train.meter import Late, Reading, Sums
from allranks.train.speeds import speeds
from allranks.train.step_file import StepFile
from allranks.train.timing import Clock, Spent

if TYPE_CHECKING:
    from allranks.train.loop import Fit
    from allranks.train.sampling import Sampling
    from allranks.train.trainer import Trainer


class Recorder:
    """Turns the meter's readings into training metrics, late enough that nothing waits for them."""

    def __init__(self, trainer: Trainer, fit: Fit, clock: Clock, sampling: Sampling) -> None:
        self._trainer, self._parts, self._meter = trainer, fit.parts, fit.meter
        self._session = fit.engine.session
        self._clock, self._sampling = clock, sampling
        self._pending: tuple[Reading, dict[str, Any]] | None = None
        self._epoch_sums = Sums()
        self._warned = False
        self._step = fit.state.step
        self._file: StepFile | None = None
        self._opened = False

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
        self.settle()  # first: where a GPU has done the window before, the clock knows its time
        state = self._trainer.state
        about: dict[str, Any] = {"step": state.step, "epoch": state.epoch, **self._rates()}
        if self._parts.grad_norm is not None:
            about["grad_norm"] = Late(self._parts.grad_norm)
        spent = self._spent(state.step, wait=final)
        about["steps"] = spent.steps
        self._pending = (self._meter.flush(spent.shared, spent.own), about)
        if final or self._session.device.type == "cpu":  # nothing to wait for
            self.settle()

    def _spent(self, step: int, *, wait: bool) -> Spent:
        """What this rank's steps took since the last time."""
        steps, self._step = step - self._step, step
        if not steps:
            return Spent()
        spent = self._clock.window(step, wait=wait)
        spent.facts = {"samples": self._meter.samples / steps, **self._sampling.facts()}
        return spent

    def show(self) -> None:
        """Write what waits: for a while no step will, and somebody may look at the run meanwhile."""
        self.settle()
        self._trainer._sink.flush()
        if self._file is not None:
            self._file.flush()

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
        step, epoch, steps = (about.pop(name) for name in ("step", "epoch", "steps"))
        values = {f"train_{name}": value for name, value in means.items()}
        values |= {name: float(value) for name, value in about.items()}
        if steps:
            values |= self._speeds(reading)
            self._note_ranks(reading, step, epoch, steps)
        self._check_finite(values["train_loss"], step)
        self._trainer.state.values["loss"] = values["train_loss"]
        self._trainer._write(values, kind="train", step=step, epoch=epoch)

    def close(self) -> None:
        """Write what waits."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _speeds(self, reading: Reading) -> dict[str, float]:
        """How fast the window was and what its time went to, over all ranks."""
        found = speeds(reading.shared(), self._session.world.size)
        self._sampling.pace = found.get("step_seconds", self._sampling.pace)
        return found

    def _note_ranks(self, reading: Reading, step: int, epoch: int, steps: int) -> None:
        """Rank 0 writes down what each rank's steps took."""
        here = self._session.world
        if not here.is_main or not self._clock.is_on:
            return
        if not self._opened:
            self._opened = True
            if (folder := present_attempt(self._trainer.folder)) is not None:
                number = fit_number(self._trainer.folder)
                self._file = StepFile(folder, here.size, self._trainer.say, fit=number)
        if self._file is not None:
            self._file.add(step, epoch, steps, reading.places())

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
