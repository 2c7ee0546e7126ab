"""State access for a strategy whose parameters and optimizer state are in DeepSpeed's partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.train.strategies import named_state_dicts as named_states
from allranks.train.strategies.base import MultiRankStrategy
from allranks.train.strategies.deepspeed.partitions import gather

_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""The changing fields of DeepSpeed's fp16 loss scalers; the others are set by the configuration."""


class PartitionedStrategy(MultiRankStrategy):
    """Gathers and broadcasts one tensor at a time, so that no rank ever holds the whole state."""

    _engine: Any = None
    _partitions: Any = None
    _groups: Sequence[Sequence[Any]] = ()
    """The user's parameters by optimizer group; those of DeepSpeed's optimizer are flat partitions."""
    _stage = 0

    def full_parameters(self) -> AbstractContextManager[None]:
        """Gather the model's parameters for reading; changes inside are lost. Collective."""
        if self._stage != 3:
            return nullcontext()
        gathered: AbstractContextManager[None] = gather([*self.model.parameters()])
        return gathered

    def model_tensors(self) -> dict[str, Any]:
        """Return the model's live state by the user's names, as this rank holds it; in fp32 if possible."""
        return {
            name: self._partitions.own_part(value)
            if isinstance(value, nn.Parameter)
            else self.rank_0_value(value)
            for name, value in self._entries().items()
        }

    def optimizer_tensors(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's live state by parameter names, as this rank holds it."""
        names = self._names(optimizer)
        own_part = {name: self._partitions.own_state(p) for name, p in self._owners(names).items()}
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": [*mine]}
            for group, mine in zip(optimizer.param_groups, names, strict=True)
        ]
        state = {name: each for name, each in own_part.items() if each}
        return {"kind": named_states.kind_of(optimizer), "state": state, "param_groups": groups}

    def load_optimizer(
        self, optimizer: Optimizer, saved: Mapping[str, Any], source: named_states.TensorSource
    ) -> None:
        """Load an optimizer that any strategy saved. Collective."""
        owners = self._owners(self._names(optimizer))
        main = self.world.is_main

        def whole(key: str) -> Tensor:
            read = source.tensor(key) if main else None
            spread: Tensor = self._partitions.spread(read, source.shape(key), source.dtype(key))
            return spread

        for name in [name for name in saved["state"] if name in owners]:
            for key, note in saved["state"][name].items():
                value = named_states.join_tensors(note, whole)  # one tensor at a time
                if owners[name].requires_grad:
                    self._partitions.set_state(owners[name], key, value)
        groups = named_states.join_tensors(saved["param_groups"], whole)
        named_states.apply_group_options(optimizer, groups)

    def extra_state(self) -> dict[str, Any]:
        """Return the state of the configuration's schedule and of the fp16 loss scaler."""
        scaler, schedule = self._scaler, self._engine.lr_scheduler
        return {
            "scheduler": None if schedule is None else schedule.state_dict(),
            "scaler": {name: getattr(scaler, name) for name in _SCALER if hasattr(scaler, name)},
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load `extra_state`, also that of another ZeRO stage."""
        if self._engine.lr_scheduler is not None and state.get("scheduler") is not None:
            self._engine.lr_scheduler.load_state_dict(state["scheduler"])
        for name, value in state.get("scaler", {}).items():
            if hasattr(self._scaler, name):
                setattr(self._scaler, name, value)

    @property
    def _scaler(self) -> Any:
        """DeepSpeed's fp16 loss scaler, which has another name without ZeRO."""
        if self.options.precision != "fp16":
            return None
        outer = self._engine.optimizer
        return getattr(outer, "loss_scaler", None) or getattr(outer, "loss_scale_config", None)

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        given: Any = SimpleNamespace(param_groups=[{"params": group} for group in self._groups])
        return named_states.optimizer_names(given, self.model, self.objective)

    def _owners(self, names: Sequence[Sequence[str]]) -> dict[str, Any]:
        return named_states.parameters_by_name([{"params": group} for group in self._groups], names)

    def _on_cpu(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            value = self._partitions.get(value)
        return super()._on_cpu(value)

    def _assign(
        self, pairs: Sequence[tuple[Tensor, str]], source: named_states.TensorSource
    ) -> None:
        plain = [pair for pair in pairs if not isinstance(pair[0], nn.Parameter)]
        super()._assign(plain, source)
        for target, key in pairs:
            if isinstance(target, nn.Parameter):
                self._partitions.set(target, source.tensor(key) if self.world.is_main else None)
