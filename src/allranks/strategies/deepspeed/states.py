"""A strategy whose parameters and optimizer state lie in DeepSpeed's pieces: whole states out and in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.strategies import states
from allranks.strategies.deepspeed.pieces import gather
from allranks.strategies.ranks import OverRanks


class InPieces(OverRanks):
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

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's whole state by parameter name, on rank 0; {} elsewhere. Collective."""
        names = self._names(optimizer)
        kept: dict[str, Any] = {}
        for name, parameter in self._owners(names).items():
            found = self._pieces.state(parameter)
            if found and self.world.is_main:
                kept[name] = {key: _copied(value) for key, value in found.items()}
        if not self.world.is_main:
            return {}
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": [*mine]}
            for group, mine in zip(optimizer.param_groups, names, strict=True)
        ]
        return {"state": kept, "param_groups": groups}

    def load_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Take rank 0's `optimizer_state`, whichever strategy made it. Collective."""
        names = self._names(optimizer)
        skeleton = self._outline(state, names)
        owners = self._owners(names)
        for name in [name for name in skeleton["state"] if name in owners]:
            for key, value in skeleton["state"][name].items():
                if isinstance(value, states.Stub):
                    source = state["state"][name][key] if self.world.is_main else None
                    value = self._pieces.spread(source, value.shape, value.dtype)
                if owners[name].requires_grad:
                    self._pieces.set_state(owners[name], key, value)
        states.apply_group_options(optimizer, skeleton["param_groups"])

    def extra_state(self) -> dict[str, Any]:
        """The schedule of the configuration and fp16's loss scale."""
        scaler, schedule = self._scaler, self._engine.lr_scheduler
        return {
            "scheduler": None if schedule is None else schedule.state_dict(),
            "loss_scale": float(scaler.cur_scale) if scaler is not None else None,
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take `extra_state`, also of another stage."""
        if self._engine.lr_scheduler is not None and state.get("scheduler") is not None:
            self._engine.lr_scheduler.load_state_dict(state["scheduler"])
        if self._scaler is not None and state.get("loss_scale"):
            self._scaler.cur_scale = state["loss_scale"]

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

    def _assign(self, pairs: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        super()._assign([pair for pair in pairs if not isinstance(pair[0], nn.Parameter)])
        for target, source in pairs:
            if isinstance(target, nn.Parameter):
                self._pieces.set(target, source)


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
