"""``prepare``: the Trainer's machinery for people who keep their own loop.

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
from allranks.runtime.world.model import World
from allranks.train.config import TrainConfig
from allranks.train.data import BatchWeight, DistributedLoader
from allranks.train.engine import Engine, make_engine
from allranks.train.meter import Meter
from allranks.train.refusals import refuse_ignored
from allranks.train.schedule import Warmup
from allranks.train.session import total_over_ranks
from allranks.train.stepping import Parts, Window, apply_gradients, close_step


def prepare(*objects: Any, config: TrainConfig | None = None, **fields: Any) -> Prepared:
    """Make a model, its optimizers and DataLoaders distributed; in any order and number.

    Keyword arguments are fields of `TrainConfig`, such as ``precision="bf16"``, ``accumulate=4``,
    ``clip_norm=1.0``, ``strategy="fsdp"`` or ``nprocs=2``. The result unpacks to the same objects in
    the same order; ``prepared.backward`` and ``prepared.step`` replace ``loss.backward`` and
    ``optimizer.step``.
    """
    if config is not None and fields:
        raise UsageError("prepare() takes a config or its fields, not both.")
    refuse_ignored(fields)
    return Prepared(objects, config or TrainConfig(**fields))


class Prepared:
    """What `prepare` made."""

    def __init__(self, objects: tuple[Any, ...], config: TrainConfig) -> None:
        models = [each for each in objects if isinstance(each, nn.Module)]
        if len(models) != 1:
            raise UsageError(f"prepare() takes one model, not {len(models)}.")
        optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
        self.config = config
        self._engine = make_engine(config, models[0], optimizers, _no_compute, calls_model=True)
        self._window: Window | None = None
        self._weight = 1.0
        self._closes = True
        self.steps = 0
        """Optimizer steps done; set it to go on from another one."""
        self._stop: Deadline | None = None
        self._parts = self._make_parts(self._engine, [*self._engine.optimizers])
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
        """Gradients, weighted so that uneven batches and accumulation give the mean over samples."""
        scaler = self._engine.precision.scaler
        loss = loss if self._weight == 1.0 else loss * self._weight
        self._engine.strategy.backward(loss if scaler is None else scaler.scale(loss))

    def step(self) -> bool:
        """Clip, step and zero, when the accumulation window is full; whether it was."""
        if not self._closes:
            return False
        correction = self._window.correction() if self._window else 1.0
        apply_gradients(self._parts, self._parts.optimizers, correction)
        close_step(self._parts)
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
        """The mean of every rank's number; collective."""
        total = total_over_ranks(float(value), self._engine.session)
        return total / self.world.size

    def print(self, *values: Any) -> None:
        """Print on rank 0 only."""
        if self.world.is_main:
            print(*values, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """The whole model under its own names, on rank 0; collective."""
        return self._engine.strategy.model_state()

    def _prepared(self, each: Any) -> Any:
        if isinstance(each, nn.Module):
            return PreparedModel(each, self._engine)
        if isinstance(each, torch.optim.Optimizer):
            return each
        training = self._window is None
        loader = self._engine.distribute(each, training=training)
        if training:
            self._window = Window(self.config.accumulate, loader.total_of)
            self._parts.batch_size = loader.batch_size
            self._engine.strategy.begin_fit(
                batch_size=loader.batch_size, global_batch=loader.global_batch, total_steps=None
            )
        return PreparedLoader(loader, self._enter if training else None)

    def _enter(self, batch_weight: BatchWeight | None, last: bool, number: int) -> None:
        """Before a training batch: its weight, and whether its backward pass communicates."""
        assert self._window is not None
        if number == 0 and not self._closes:  # the epoch before was left inside a window
            for optimizer in self._parts.optimizers:
                optimizer.zero_grad()
        weight, self._closes = self._window.enter(last, number)
        self._weight = weight * (1.0 if batch_weight is None else batch_weight.factor)
        if self.config.accumulate > 1:
            self._engine.strategy.begin_micro_batch(self._closes)

    def _make_parts(self, engine: Engine, optimizers: list[Any]) -> Parts:
        config, here = self.config, engine.session.world
        decided = engine.strategy.options
        return Parts(
            objective=engine.wrapped,
            model=engine.model,
            strategy=engine.strategy,
            optimizers=optimizers,
            names=[str(position) for position in range(len(optimizers))],
            meter=Meter(engine.session.device, here.size),
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
    """Calls the wrapped model; everything else, such as its state, is the user's own model."""

    def __init__(self, model: nn.Module, engine: Engine) -> None:
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
    """Each pass is an epoch, in another order, with every sample once over all ranks."""

    def __init__(self, loader: DistributedLoader, enter: Any) -> None:
        self.loader = loader
        self.epoch = 0
        """Passes begun so far; set it to go on from another one."""
        self.weight = 1.0
        """This rank's factor for the present batch's mean loss; `Prepared.backward` applies it."""
        self.count: int | None = None
        """This rank's samples of the present batch that count; None: all of them."""
        self._enter = enter

    def __len__(self) -> int:
        if self.loader.batches is None:
            raise TypeError("the data does not tell how many batches it has")
        return self.loader.batches

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        batches = self.loader.epoch(self.epoch)
        held, number = next(batches, None), 0
        while held is not None:
            following = next(batches, None)
            data, batch_weight = held
            self.weight = 1.0 if batch_weight is None else batch_weight.factor
            self.count = None if batch_weight is None else batch_weight.count
            if self._enter is not None:
                self._enter(batch_weight, following is None, number)
            yield data
            held, number = following, number + 1


def _no_compute(*_: Any) -> Any:
    raise UsageError("A prepared model is called by your own loop.")
