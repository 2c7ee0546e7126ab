"""A strategy whose parameters and optimizer state lie in DeepSpeed's pieces: whole states out and in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.train.strategies import named_states as states
from allranks.train.strategies.base import MultiRankStrategy
from allranks.train.strategies.deepspeed.partitions import gather

_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What moves in DeepSpeed's scalers of fp16's losses; the rest is the configuration's."""


class PartitionedStrategy(MultiRankStrategy):
    """Gathers and hands out one tensor at a time, so that no rank ever holds the whole."""

    _engine: Any = None
    _pieces: Any = None
    _groups: Sequence[Sequence[Any]] = ()
    """The user's parameters by optimizer group: the optimizer's own are flat pieces by now."""
    _stage = 0

    def full_parameters(self) -> AbstractContextManager[None]:
        """Inside, the model's parameters are whole, to be read: changes are lost. Collective."""
        if self._stage != 3:
            return nullcontext()
        gathered: AbstractContextManager[None] = gather([*self.model.parameters()])
        return gathered

    def model_tensors(self) -> dict[str, Any]:
        """The model's live state by the user's names, as this rank holds it: fp32 where there is."""
        return {
            name: self._pieces.held(value)
            if isinstance(value, nn.Parameter)
            else self.rank_0_value(value)
            for name, value in self._entries().items()
        }

    def optimizer_tensors(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's live state likewise."""
        names = self._names(optimizer)
        held = {name: self._pieces.held_state(p) for name, p in self._owners(names).items()}
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": [*mine]}
            for group, mine in zip(optimizer.param_groups, names, strict=True)
        ]
        state = {name: each for name, each in held.items() if each}
        return {"kind": states.kind_of(optimizer), "state": state, "param_groups": groups}

    def load_optimizer(
        self, optimizer: Optimizer, saved: Mapping[str, Any], source: states.TensorSource
    ) -> None:
        """Take a saved optimizer, whichever strategy it was saved under. Collective."""
        owners = self._owners(self._names(optimizer))
        main = self.world.is_main

        def whole(key: str) -> Tensor:
            read = source.tensor(key) if main else None
            spread: Tensor = self._pieces.spread(read, source.shape(key), source.dtype(key))
            return spread

        for name in [name for name in saved["state"] if name in owners]:
            for key, note in saved["state"][name].items():
                value = states.join_tensors(note, whole)  # one tensor at a time
                if owners[name].requires_grad:
                    self._pieces.set_state(owners[name], key, value)
        groups = states.join_tensors(saved["param_groups"], whole)
        states.apply_group_options(optimizer, groups)

    def extra_state(self) -> dict[str, Any]:
        """The schedule of the configuration and the scaler of fp16's losses."""
        scaler, schedule = self._scaler, self._engine.lr_scheduler
        return {
            "scheduler": None if schedule is None else schedule.state_dict(),
            "scaler": {name: getattr(scaler, name) for name in _SCALER if hasattr(scaler, name)},
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take `extra_state`, also of another stage."""
        if self._engine.lr_scheduler is not None and state.get("scheduler") is not None:
            self._engine.lr_scheduler.load_state_dict(state["scheduler"])
        for name, value in state.get("scaler", {}).items():
            if hasattr(self._scaler, name):
                setattr(self._scaler, name, value)

    @property
    def _scaler(self) -> Any:
        """What holds fp16's loss scale; without ZeRO it has another name."""
        if self.options.precision != "fp16":
            return None
        outer = self._engine.optimizer
        return getattr(outer, "loss_scaler", None) or getattr(outer, "loss_scale_config", None)

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        given: Any = SimpleNamespace(param_groups=[{"params": group} for group in self._groups])
        return states.optimizer_names(given, self.model, self.objective)

    def _owners(self, names: Sequence[Sequence[str]]) -> dict[str, Any]:
        return states.parameters_by_name([{"params": group} for group in self._groups], names)

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            value = self._pieces.get(value)
        return super()._on_cpu(value)

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: states.TensorSource) -> None:
        plain = [pair for pair in pairs if not isinstance(pair[0], nn.Parameter)]
        super()._assign(plain, source)
        for target, key in pairs:
            if isinstance(target, nn.Parameter):
                self._pieces.set(target, source.tensor(key) if self.world.is_main else None)
