"""``prepare``: what the Trainer does for its own loop, for loops of your own.

model, optimizer, loader = prepared = allranks.prepare(model, optimizer, loader)
for epoch in range(10):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        prepared.backward(loss)
        prepared.step()
        if prepared.should_stop():             # the job is about to end
            save(...)
            prepared.exit()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from allranks.core.units import parse_time
from allranks.errors import UsageError
from allranks.runtime.preemption.deadline import Deadline, deadline
from allranks.runtime.world.communicator import get_communicator
from allranks.runtime.world.model import World
from allranks.train.argument_checks import refuse_unused_fields
from allranks.train.config import TrainConfig
from allranks.train.data import BatchWeight, DistributedLoader
from allranks.train.model_setup import TrainEngine, make_engine
from allranks.train.step.metric_accumulator import MetricAccumulator
from allranks.train.step.optimizer_settings import Warmup
from allranks.train.step.step_functions import (
    AccumulationWindow,
    StepContext,
    apply_gradients,
    finish_step,
)


def prepare(*objects: Any, config: TrainConfig | None = None, **fields: Any) -> Prepared:
    """Make a model, its optimizers and DataLoaders distributed; in any order and number.

    Keyword arguments are fields of `TrainConfig`, such as ``precision="bf16"``, ``accumulate=4``,
    ``clip_norm=1.0``, ``strategy="fsdp"`` or ``nprocs=2``. The result unpacks to the same objects in
    the same order; ``prepared.backward`` and ``prepared.step`` replace ``loss.backward`` and
    ``optimizer.step``.
    """
    if config is not None and fields:
        raise UsageError("prepare() takes a config or its fields, not both.")
    refuse_unused_fields(fields)
    return Prepared(objects, config or TrainConfig(**fields))


class Prepared:
    """A model, optimizers and loaders made distributed; unpacks to them in the order given."""

    def __init__(self, objects: tuple[Any, ...], config: TrainConfig) -> None:
        models = [each for each in objects if isinstance(each, nn.Module)]
        if len(models) != 1:
            raise UsageError(f"prepare() takes one model, not {len(models)}.")
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        self.config = config
        self._engine = make_engine(config, models[0], optimizers, _no_compute, calls_model=True)
        self._window: AccumulationWindow | None = None
        self._weight = 1.0
        self._closes = True
        self.steps = 0
        """Optimizer steps done; set it when you resume."""
        self._stop: Deadline | None = None
        self._steps = self._step_context(self._engine, [*self._engine.optimizers])
        self._made = tuple(self._prepared(each) for each in objects)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made)

    @property
    def world(self) -> World:
        """This rank and its peers."""
        return self._engine.session.world

    @property
    def device(self) -> torch.device:
        """Where batches arrive and the model is."""
        return self._engine.session.device

    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients, weighted so that uneven batches and accumulation give the mean over samples."""
        scaler = self._engine.precision.scaler
        loss = loss if self._weight == 1.0 else loss * self._weight
        self._engine.strategy.backward(loss if scaler is None else scaler.scale(loss))

    def step(self) -> bool:
        """Clip, step and zero when the accumulation window is full; return whether it was."""
        if not self._closes:
            return False
        correction = self._window.correction() if self._window else 1.0
        apply_gradients(self._steps, self._steps.optimizers, correction)
        finish_step(self._steps)
        self.steps += 1
        return True

    def should_stop(self) -> bool:
        """Whether to save and `exit` now, since the job ends or a signal came; the same on all ranks.

        Call it once for each batch, after `step`. Signals are watched from the first call on.
        """
        if self._stop is None:
            self._stop = deadline()
            self._stop.margin = float(parse_time(self.config.deadline_margin))
        return self._stop.should_stop(self.steps)

    def exit(self) -> NoReturn:
        """End this process on purpose, on every rank, after `should_stop` was true and all is saved."""
        deadline().exit(self.steps)

    def mean(self, value: Any) -> float:
        """Return the mean of every rank's number; collective."""
        size = self.world.size
        return get_communicator(size).sum([float(value)])[0] / size

    def print(self, *values: Any) -> None:
        """Print on rank 0 only."""
        if self.world.is_main:
            print(*values, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole model under its own names, on rank 0; collective."""
        return self._engine.strategy.model_state()

    def _prepared(self, each: Any) -> Any:
        if isinstance(each, nn.Module):
            return PreparedModel(each, self._engine)
        if isinstance(each, torch.optim.Optimizer):
            return each
        training = self._window is None
        prepared = self._engine.loader(each, training=training)
        if training:
            self._window = AccumulationWindow(self.config.accumulate, prepared.total_of)
            self._steps.batch_size = prepared.batch_size
            self._engine.strategy.begin_fit(
                batch_size=prepared.batch_size, global_batch=prepared.global_batch, total_steps=None
            )
        return PreparedLoader(prepared, self._weigh if training else None)

    def _weigh(self, batch_weight: BatchWeight | None, last: bool, number: int) -> None:
        """Set the weight of a training batch, and whether its backward pass communicates."""
        assert self._window is not None
        if number == 0 and not self._closes:  # the last epoch ended inside a window
            for optimizer in self._steps.optimizers:
                optimizer.zero_grad()
        weight, self._closes = self._window.weigh(last, number)
        self._weight = weight * (1.0 if batch_weight is None else batch_weight.factor)
        if self.config.accumulate > 1:
            self._engine.strategy.begin_micro_batch(self._closes)

    def _step_context(self, engine: TrainEngine, optimizers: list[Any]) -> StepContext:
        config, here = self.config, engine.session.world
        decided = engine.strategy.options
        return StepContext(
            objective=engine.wrapped,
            model=engine.model,
            strategy=engine.strategy,
            optimizers=optimizers,
            names=[str(position) for position in range(len(optimizers))],
            accumulator=MetricAccumulator(engine.session.device, here.size),
            precision=engine.precision,
            batch_size=None,
            total_of=lambda _: None,
            rank=here.rank,
            size=here.size,
            accumulate=config.accumulate,
            clip_norm=decided.clip_norm,
            clip_value=config.clip_value,
            warmup=Warmup(optimizers, decided.warmup_steps) if decided.warmup_steps else None,
        )


class PreparedModel(nn.Module):
    """Calls the wrapped model; everything else, such as its state, is that of the user's model."""

    def __init__(self, model: nn.Module, engine: TrainEngine) -> None:
        super().__init__()
        self.module = model
        # In a tuple, so that the wrapper is not registered as a second child.
        self._inside = (engine.wrapped, engine.precision.autocast)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        wrapped, autocast = self._inside
        call = wrapped if torch.is_grad_enabled() else self.module
        if autocast is None:
            return call(*args, **kwargs)
        with torch.autocast(*autocast):
            return call(*args, **kwargs)

    def train(self, mode: bool = True) -> PreparedModel:
        self._inside[0].train(mode)
        super().train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class PreparedLoader:
    """Each pass is an epoch in a new order, with every sample once over all ranks."""

    def __init__(self, loader: DistributedLoader, weigh: Any) -> None:
        self._loader = loader
        self.epoch = 0
        """Passes begun so far; set it when you resume."""
        self.weight = 1.0
        """This rank's factor for the mean loss of the current batch; `Prepared.backward` applies it."""
        self.count: int | None = None
        """This rank's samples of the current batch that count; None: all of them."""
        self._weigh = weigh

    def __len__(self) -> int:
        if self._loader.batches is None:
            raise TypeError("the number of batches of this data is unknown")
        return self._loader.batches

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        batches = self._loader.epoch(self.epoch)
        held, number = next(batches, None), 0
        while held is not None:
            following = next(batches, None)
            data, batch_weight = held
            self.weight = 1.0 if batch_weight is None else batch_weight.factor
            self.count = None if batch_weight is None else batch_weight.count
            if self._weigh is not None:
                self._weigh(batch_weight, following is None, number)
            yield data
            held, number = following, number + 1


def _no_compute(*_: Any) -> Any:
    raise UsageError("A prepared model is called by your own loop.")
