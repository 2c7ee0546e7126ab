"""What a checkpoint takes from a strategy and gives back to it, whichever strategy saved it.

Nothing is gathered to save: a rank gives what it holds. To load, tensors are made ready and then filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.runtime.world import World
from allranks.train.checkpoint.write_plan import is_shard
from allranks.train.strategies import named_states as states
from allranks.train.strategies.named_states import TensorSource


class StateAccess:
    """The side of a strategy that checkpoints see. Methods marked collective are called by all ranks."""

    model: Any = None
    """The user's model, which may have been changed in place."""
    objective: nn.Module | None
    world: World
    device: torch.device

    def model_state(self) -> dict[str, Any]:
        """The whole model on the CPU under the user's names, on rank 0; {} elsewhere. Collective."""
        gathered: dict[int, Any] = {}
        full: dict[str, Any] = {}
        for name, value in self._entries().items():
            if id(value) not in gathered:  # tied parameters are gathered and kept once
                gathered[id(value)] = self._on_cpu(value)
            full[name] = gathered[id(value)]
        return full if self.world.is_main else {}

    def model_tensors(self) -> dict[str, Any]:
        """The model's live state by the user's names, as this rank holds it.

        A tensor is the same on all ranks, a DTensor or a FlatShard is this rank's part of one; what
        modules keep beside tensors is there, too.
        """
        return {name: self.rank_0_value(value) for name, value in self._entries().items()}

    def rank_0_value(self, value: Any) -> Any:
        """Buffers may differ over ranks, such as the statistics of batch norms: rank 0's count."""
        return value

    def optimizer_tensors(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's live state likewise, in the form that `states` describes."""
        return states.name_optimizer_state(optimizer, self._names(optimizer))

    def like_parameter(self, parameter: Any, local: Tensor) -> Any:
        """A tensor that goes with this rank's part of a parameter, in the parameter's own form."""
        return local

    def model_mismatch(self, model: Mapping[str, Any], source: TensorSource) -> str:
        """Why a saved model cannot be loaded; empty when it can."""
        entries = self._entries()
        own = states.own_tensors(self.model, entries)
        keys = states.tensor_keys(model)
        # What a module makes for its state it also takes back: the shape is its own affair.
        compared = {name: keys[name] for name in keys if name in own or name not in entries}
        return states.model_mismatch(own, compared, source)

    def optimizer_mismatch(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> str:
        """Why a saved optimizer cannot be loaded; empty when it can."""
        return states.optimizer_mismatch(optimizer, saved, self._names(optimizer))

    def load_model(self, saved: Mapping[str, Any], source: TensorSource) -> None:
        """Take a saved model: its tree, and the tensors that its notes name. Collective."""
        entries, keys = self._entries(), states.tensor_keys(saved)
        own = states.own_tensors(self.model, entries)
        self.load_tensors(
            {keys[name]: value for name, value in own.items() if name in keys}, source
        )
        rest = {name: value for name, value in saved.items() if name not in own}
        states.load_rest(self.model, self._made_anew(rest, entries, source))

    def _made_anew(
        self, tree: Mapping[str, Any], entries: Mapping[str, Any], source: TensorSource
    ) -> dict[str, Any]:
        """A saved tree with its tensors, each where the tensor of that place is now. Collective."""
        here: dict[str, Any] = {}
        states.split_tensors(entries, "model", here)
        made: dict[str, Any] = {}

        def place(key: str) -> None:
            like = here.get(key)
            spread = like if is_shard(like) else None
            made[key] = self._room(source.shape(key), source.dtype(key), spread)

        states.join_tensors(tree, place)
        self.load_tensors(made, source)
        return dict(states.join_tensors(tree, lambda key: _beside(made[key], here.get(key))))

    def load_optimizer(
        self, optimizer: Optimizer, saved: Mapping[str, Any], source: TensorSource
    ) -> None:
        """Take a saved optimizer, whichever strategy it was saved under. Collective."""
        names = self._names(optimizer)
        owners = states.parameters_by_name(optimizer.param_groups, names)
        made: dict[str, Any] = {}

        def place(owner: Any, key: str) -> Any:
            made[key] = self._room(source.shape(key), source.dtype(key), owners.get(owner))
            return made[key]

        state = {
            owner: states.join_tensors(each, partial(place, owner))
            for owner, each in saved["state"].items()
        }
        rest = {key: each for key, each in saved.items() if key != "state"}
        whole = {**states.join_tensors(rest, partial(place, None)), "state": state}
        self.load_tensors(made, source)
        states.apply_optimizer_state(optimizer, whole, names)

    def load_tensors(self, targets: Mapping[str, Any], source: TensorSource) -> None:
        """Give tensors the values that a checkpoint has under their keys. Collective."""
        pairs = [(target, key) for key, target in _once(targets).items()]
        with torch.no_grad():
            if pairs:
                self._assign(pairs, source)

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint must keep besides model and optimizers, as plain values. Collective."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take `extra_state` of the same strategy, given to all ranks."""

    # What a strategy over several ranks replaces

    def _full(self, value: Tensor) -> Tensor:
        """The whole of a tensor that may be spread. Collective."""
        return value

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: TensorSource) -> None:
        """Copy what a checkpoint has under each key. Collective."""
        for target, key in pairs:
            target.copy_(source.tensor(key))

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype, parameter: Any) -> Tensor:
        """An empty tensor for the state beside ``parameter``, spread as it is where it is as large."""
        device = self.device if parameter is None else parameter.device
        return torch.empty(shape, dtype=dtype, device=device)

    def _entries(self) -> dict[str, Any]:
        return states.entries(self.model)

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        return states.optimizer_names(optimizer, self.model, self.objective)

    def _on_cpu(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        full = self._full(value.detach())
        return full.to("cpu", copy=True) if self.world.is_main else None


def _beside(value: Tensor, other: Any) -> Tensor:
    """On the device of the other, if that is a tensor."""
    return value.to(other.device) if isinstance(other, Tensor) else value


def _once(targets: Mapping[str, Any]) -> dict[str, Any]:
    """Tied parameters have several names and are filled under the first."""
    first: dict[int, str] = {}
    return {key: each for key, each in targets.items() if first.setdefault(id(each), key) == key}
