"""Model and optimizer states by the user's parameter names, so that any strategy can load them.

An optimizer's state is ``{"state": {name: {...}}, "param_groups": [{..., "params": [name]}]}``: PyTorch's
form with names instead of positions, and the optimizer's "kind". For a checkpoint `split_tensors` splits
such a tree into its tensors, each under a key, and a tree with a reference in place of each tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.train.checkpoint.write_plan import FlatShard

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
_NOT_STATE = ("foreach", "fused", "capturable", "differentiable")
"""Options for how a step is computed: they belong to the machine, not to the state."""
_REFERENCE = "$tensor"


class TensorSource(Protocol):
    """The tensors of a checkpoint by their keys."""

    path: Path

    def keys(self) -> Collection[str]: ...
    def shape(self, key: str) -> tuple[int, ...]: ...
    def dtype(self, key: str) -> torch.dtype: ...
    def tensor(self, key: str) -> Tensor: ...


class TensorsInMemory:
    """A `TensorSource` of tensors in memory."""

    path = Path()

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def keys(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._tensors[key].shape)

    def dtype(self, key: str) -> torch.dtype:
        return self._tensors[key].dtype

    def tensor(self, key: str) -> Tensor:
        return self._tensors[key]


def split_tensors(
    tree: Any, prefix: str, tensors: dict[str, Any], *, counters: bool = False
) -> Any:
    """Move the tensors of a tree to ``tensors``, by their paths from ``prefix``; return the tree of references.

    ``counters``: scalars on the CPU, such as an optimizer's step counters, stay in the tree.
    """
    apart = partial(split_tensors, tensors=tensors, counters=counters)
    if isinstance(tree, Mapping):
        return {key: apart(each, f"{prefix}.{key}") for key, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        kind = tuple if isinstance(tree, tuple) else list
        return kind(apart(each, f"{prefix}.{i}") for i, each in enumerate(tree))
    if not isinstance(tree, (Tensor, FlatShard)):
        return plain_number(tree)
    if counters and isinstance(tree, Tensor) and not tree.dim() and tree.device.type == "cpu":
        return tree.detach().clone()
    tensors[prefix] = tree.detach() if isinstance(tree, Tensor) else tree
    return {_REFERENCE: prefix}


def plain_number(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, so that reading a checkpoint does not need NumPy."""
    numpy = sys.modules.get("numpy")  # if it is not loaded there are none
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def join_tensors(tree: Any, place: Callable[[str], Any]) -> Any:
    """Return the tree with ``place(key)`` for each reference."""
    if isinstance(tree, Mapping):
        if [*tree] == [_REFERENCE]:
            return place(tree[_REFERENCE])
        return {key: join_tensors(each, place) for key, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        kind = tuple if isinstance(tree, tuple) else list
        return kind(join_tensors(each, place) for each in tree)
    return tree


def tensor_keys(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of the tensors at the top level of a tree, by name."""
    return {
        name: each[_REFERENCE]
        for name, each in tree.items()
        if isinstance(each, Mapping) and [*each] == [_REFERENCE]
    }


def user_name(name: str) -> str:
    """Return a parameter's name without the prefixes of wrappers."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def entries(model: nn.Module) -> dict[str, Any]:
    """Return the model's live state by the user's names."""
    return {user_name(key): value for key, value in model.state_dict(keep_vars=True).items()}


def own_tensors(model: nn.Module, entries: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the entries that are parameters or buffers; ``state_dict()`` created all others."""
    own = {id(value) for value in (*model.parameters(), *model.buffers())}
    return {name: value for name, value in entries.items() if id(value) in own}


def model_mismatch(
    targets: Mapping[str, Any], saved: Mapping[str, str], source: TensorSource
) -> str:
    """Return why the saved tensors (name → key) do not fit these; empty if they do."""
    own = {name: value for name, value in targets.items() if isinstance(value, Tensor)}
    problems = [f"'{name}' is missing" for name in own if name not in saved]
    problems += [f"'{name}' is not in this model" for name in saved if name not in own]
    for name, value in own.items():
        if name in saved and source.shape(saved[name]) != tuple(_shape(value)):
            shape = [*source.shape(saved[name])]
            problems.append(f"'{name}' has shape {shape}, here {[*_shape(value)]}")
    return _shorten("The saved model does not match this one", problems) if problems else ""


def _shape(value: Any) -> Any:
    return getattr(value, "ds_shape", value.shape)  # ZeRO 3's parameters are empty between uses


def load_rest(model: nn.Module, rest: Mapping[str, Any]) -> None:
    """Load the extra state of modules; all other entries keep their present values."""
    if rest:
        whole = model.state_dict(keep_vars=True)
        real = {user_name(key): key for key in whole}
        whole.update({real.get(name, name): value for name, value in rest.items()})
        model.load_state_dict(whole, strict=False)


def optimizer_names(
    optimizer: Optimizer, model: nn.Module, objective: nn.Module | None
) -> list[list[str]]:
    """Return a name for each parameter of each group."""
    known: dict[int, str] = {}
    for prefix, module in (("", model), ("objective.", objective)):
        if module is not None:
            for name, value in module.named_parameters(remove_duplicate=False):
                known.setdefault(id(value), prefix + user_name(name))
    return [
        [known.get(id(value), f"group {g}, number {i}") for i, value in enumerate(group["params"])]
        for g, group in enumerate(optimizer.param_groups)
    ]


def parameters_by_name(
    groups: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]
) -> dict[Any, Any]:
    """Return the parameters of an optimizer's groups by their names."""
    found: dict[Any, Any] = {}
    for group, group_names in zip(groups, names, strict=True):
        found.update(zip(group_names, group["params"], strict=True))
    return found


def name_optimizer_state(optimizer: Optimizer, names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the optimizer's live state with names instead of positions."""
    raw = optimizer.state_dict()
    flat = [name for group in names for name in group]
    groups = [
        {**group, "params": [*group_names]}
        for group, group_names in zip(raw["param_groups"], names, strict=True)
    ]
    # State that does not belong to a parameter keeps its key.
    state = {flat[key] if isinstance(key, int) else key: raw["state"][key] for key in raw["state"]}
    rest = {key: value for key, value in raw.items() if key not in ("state", "param_groups")}
    order = sorted(state, key=str)  # the same order on every rank
    named = {"state": {key: state[key] for key in order}, "param_groups": groups}
    return {**rest, "kind": kind_of(optimizer), **named}


def apply_optimizer_state(
    optimizer: Optimizer, state: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> None:
    """Load a state whose tensors are already sharded like the parameters."""
    position = {name: i for i, name in enumerate(name for group in names for name in group)}
    groups = []
    for mine, group_names, saved in zip(
        optimizer.param_groups, names, state["param_groups"], strict=True
    ):
        kept = {key: mine[key] for key in _NOT_STATE if key in mine}
        params = [position[name] for name in group_names]
        groups.append({**mine, **saved, **kept, "params": params})
    moved = {position.get(key, key): value for key, value in state["state"].items()}
    optimizer.load_state_dict({**state, "state": moved, "param_groups": groups})


def kind_of(optimizer: Optimizer) -> str:
    """Return the name of an optimizer's class."""
    return type(optimizer).__name__


def family(kind: str) -> str:
    """Return a common name for optimizers with the same state: Adam, AdamW and DeepSpeed's variants."""
    for word in ("DeepSpeedCPU", "Fused"):
        kind = kind.removeprefix(word)
    return "Adam" if kind == "AdamW" else kind


def apply_group_options(optimizer: Optimizer, saved: Sequence[Mapping[str, Any]]) -> None:
    """Load learning rates and other options of the groups, not their parameters."""
    left = ("params", *_NOT_STATE)
    for mine, theirs in zip(optimizer.param_groups, saved, strict=True):
        mine.update({key: value for key, value in theirs.items() if key not in left})


def optimizer_mismatch(
    optimizer: Optimizer, state: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> str:
    """Return why a saved state does not fit this optimizer; empty if it does."""
    saved, kind = state["param_groups"], kind_of(optimizer)
    if family(state["kind"]) != family(kind):
        return f"The saved optimizer is {state['kind']}, but this one is {kind}."
    if len(saved) != len(names):
        return (
            f"The saved optimizer has {len(saved)} parameter groups, but this one has {len(names)}."
        )
    problems = []
    for i, (group, here) in enumerate(zip(saved, names, strict=True)):
        problems += [f"group {i} lacks '{name}'" for name in set(here) - set(group["params"])]
        problems += [f"group {i} has also '{name}'" for name in set(group["params"]) - set(here)]
    if not problems:
        return ""
    return _shorten("The saved optimizer does not match this one", sorted(problems))


def _shorten(what: str, problems: Sequence[str], most: int = 6) -> str:
    more = f" and {len(problems) - most} more" if len(problems) > most else ""
    return f"{what}: {'; '.join(problems[:most])}{more}."
