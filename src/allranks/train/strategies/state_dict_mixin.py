"""`StateAccess`: read a strategy's state for a checkpoint, and load a checkpoint of any strategy into it.

Nothing is gathered to save: a rank returns what it holds. To load, tensors are allocated and then filled.
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
from allranks.train.strategies import named_state_dicts as named_states
from allranks.train.strategies.named_state_dicts import TensorSource


class StateAccess:
    """The checkpoint interface of a strategy. Methods marked collective are called by all ranks."""

    model: Any = None
    """The user's model, which a strategy may change in place."""
    objective: nn.Module | None
    world: World
    device: torch.device

    def model_state(self) -> dict[str, Any]:
        """Return the whole model on the CPU by the user's names on rank 0, {} elsewhere. Collective."""
        gathered: dict[int, Any] = {}
        full: dict[str, Any] = {}
        for name, value in self._entries().items():
            if id(value) not in gathered:  # tied parameters are gathered once
                gathered[id(value)] = self._on_cpu(value)
            full[name] = gathered[id(value)]
        return full if self.world.is_main else {}

    def model_tensors(self) -> dict[str, Any]:
        """Return the model's live state by the user's names, as this rank holds it.

        A tensor is the same on all ranks, a DTensor or a FlatShard is this rank's part of one. The extra
        state of modules is included.
        """
        return {name: self.rank_0_value(value) for name, value in self._entries().items()}

    def rank_0_value(self, value: Any) -> Any:
        """Return the value to save for a buffer: rank 0's, since buffers may differ over the ranks."""
        return value

    def optimizer_tensors(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's live state by parameter names, in the form of `named_states`."""
        return named_states.name_optimizer_state(optimizer, self._names(optimizer))

    def like_parameter(self, parameter: Any, local: Tensor) -> Any:
        """Return a tensor of the size of this rank's part of a parameter, sharded like the parameter."""
        return local

    def model_mismatch(self, model: Mapping[str, Any], source: TensorSource) -> str:
        """Return why a saved model cannot be loaded; empty if it can."""
        entries = self._entries()
        own = named_states.own_tensors(self.model, entries)
        keys = named_states.tensor_keys(model)
        # A module loads the extra state that it saved itself: its shape is not checked.
        compared = {name: keys[name] for name in keys if name in own or name not in entries}
        return named_states.model_mismatch(own, compared, source)

    def optimizer_mismatch(self, optimizer: Optimizer, saved: Mapping[str, Any]) -> str:
        """Return why a saved optimizer cannot be loaded; empty if it can."""
        return named_states.optimizer_mismatch(optimizer, saved, self._names(optimizer))

    def load_model(self, saved: Mapping[str, Any], source: TensorSource) -> None:
        """Load a saved model: its tree, and the tensors to which the tree refers. Collective."""
        entries, keys = self._entries(), named_states.tensor_keys(saved)
        own = named_states.own_tensors(self.model, entries)
        self.load_tensors(
            {keys[name]: value for name, value in own.items() if name in keys}, source
        )
        rest = {name: value for name, value in saved.items() if name not in own}
        named_states.load_rest(self.model, self._load_extra_entries(rest, entries, source))

    def _load_extra_entries(
        self, tree: Mapping[str, Any], entries: Mapping[str, Any], source: TensorSource
    ) -> dict[str, Any]:
        """Return a saved tree with its tensors, on the devices of the present ones. Collective."""
        here: dict[str, Any] = {}
        named_states.split_tensors(entries, "model", here)
        made: dict[str, Any] = {}

        def place(key: str) -> None:
            like = here.get(key)
            spread = like if is_shard(like) else None
            made[key] = self._allocate(source.shape(key), source.dtype(key), spread)

        named_states.join_tensors(tree, place)
        self.load_tensors(made, source)
        return dict(
            named_states.join_tensors(tree, lambda key: _move_beside(made[key], here.get(key)))
        )

    def load_optimizer(
        self, optimizer: Optimizer, saved: Mapping[str, Any], source: TensorSource
    ) -> None:
        """Load an optimizer that any strategy saved. Collective."""
        names = self._names(optimizer)
        owners = named_states.parameters_by_name(optimizer.param_groups, names)
        made: dict[str, Any] = {}

        def place(owner: Any, key: str) -> Any:
            made[key] = self._allocate(source.shape(key), source.dtype(key), owners.get(owner))
            return made[key]

        state = {
            owner: named_states.join_tensors(each, partial(place, owner))
            for owner, each in saved["state"].items()
        }
        rest = {key: each for key, each in saved.items() if key != "state"}
        whole = {**named_states.join_tensors(rest, partial(place, None)), "state": state}
        self.load_tensors(made, source)
        named_states.apply_optimizer_state(optimizer, whole, names)

    def load_tensors(self, targets: Mapping[str, Any], source: TensorSource) -> None:
        """Copy the values of a checkpoint to tensors by their keys. Collective."""
        pairs = [(target, key) for key, target in _drop_tied(targets).items()]
        with torch.no_grad():
            if pairs:
                self._assign(pairs, source)

    def extra_state(self) -> dict[str, Any]:
        """Return further state for a checkpoint, as plain values. Collective."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load the `extra_state` of the same strategy, on all ranks."""

    # Overridden by strategies for several ranks

    def _full(self, value: Tensor) -> Tensor:
        """Gather a tensor that may be sharded. Collective."""
        return value

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: TensorSource) -> None:
        """Copy the value of each key to its tensor. Collective."""
        for target, key in pairs:
            target.copy_(source.tensor(key))

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype, parameter: Any) -> Tensor:
        """Allocate a tensor for the state of ``parameter``, sharded like it if it has the same shape."""
        device = self.device if parameter is None else parameter.device
        return torch.empty(shape, dtype=dtype, device=device)

    def _entries(self) -> dict[str, Any]:
        return named_states.entries(self.model)

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        return named_states.optimizer_names(optimizer, self.model, self.objective)

    def _on_cpu(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        full = self._full(value.detach())
        return full.to("cpu", copy=True) if self.world.is_main else None


def _move_beside(value: Tensor, other: Any) -> Tensor:
    """Move a tensor to the device of the other, if that is a tensor."""
    return value.to(other.device) if isinstance(other, Tensor) else value


def _drop_tied(targets: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the later names of tied parameters."""
    first: dict[int, str] = {}
    return {key: each for key, each in targets.items() if first.setdefault(id(each), key) == key}
