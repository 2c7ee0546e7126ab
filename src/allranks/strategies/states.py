"""Model and optimizer states by the user's parameter names, so that every strategy reads every other's.

An optimizer's state here is ``{"state": {name: {...}}, "param_groups": [{..., "params": [name]}]}``:
PyTorch's own form with names for positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.errors import UsageError

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
_HOW_NOT_WHAT = ("foreach", "fused", "capturable", "differentiable")
"""Options that say how a step is computed: they belong to the machine, not to the state."""
Change = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Stub:
    """Stands for a tensor that follows by itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def refuse_unmade(model: nn.Module) -> None:
    """An error for parameters that have a shape but no values."""
    for name, value in model.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise UsageError(f"Parameter '{name}' is lazy: run one batch through the model first.")
        if value.is_meta:
            raise UsageError(
                f"Parameter '{name}' is on the meta device: give the model values first."
            )


def user_name(name: str) -> str:
    """The name without what wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def entries(model: nn.Module) -> dict[str, Any]:
    """The model's live state by the user's names."""
    return {user_name(key): value for key, value in model.state_dict(keep_vars=True).items()}


def check_model_state(
    targets: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with ``state`` (None: nothing), and what of it is no tensor."""
    problems = [f"'{name}' is missing" for name in targets if name not in state]
    problems += [f"'{name}' is not of this model" for name in state if name not in targets]
    for name, value in targets.items():
        if isinstance(value, Tensor) and name in state and state[name].shape != _shape(value):
            problems.append(f"'{name}' is {[*state[name].shape]}, here {[*_shape(value)]}")
    if problems:
        return _too_long("The saved model does not fit this one", problems), {}
    return None, {name: value for name, value in state.items() if not isinstance(value, Tensor)}


def _shape(value: Any) -> Any:
    return getattr(value, "ds_shape", value.shape)  # ZeRO 3's parameters are empty between uses


def load_extras(model: nn.Module, extras: Mapping[str, Any]) -> None:
    """Hand what modules saved beside tensors back to them."""
    if extras:
        real = {user_name(key): key for key in model.state_dict(keep_vars=True)}
        model.load_state_dict({real[name]: value for name, value in extras.items()}, strict=False)


def optimizer_names(
    optimizer: Optimizer, model: nn.Module, objective: nn.Module | None
) -> list[list[str]]:
    """A name for each parameter of each group."""
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
    """The parameters of an optimizer's groups by their names."""
    found: dict[Any, Any] = {}
    for group, group_names in zip(groups, names, strict=True):
        found.update(zip(group_names, group["params"], strict=True))
    return found


def name_optimizer_state(optimizer: Optimizer, names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The optimizer's live state with names for positions."""
    raw = optimizer.state_dict()
    flat = [name for group in names for name in group]
    groups = [
        {**group, "params": [*group_names]}
        for group, group_names in zip(raw["param_groups"], names, strict=True)
    ]
    # State that belongs to no parameter has a key of its own.
    state = {flat[key] if isinstance(key, int) else key: raw["state"][key] for key in raw["state"]}
    rest = {key: value for key, value in raw.items() if key not in ("state", "param_groups")}
    order = sorted(state, key=str)  # every rank walks the same way
    return {**rest, "state": {key: state[key] for key in order}, "param_groups": groups}


def walk(state: Mapping[str, Any], change: Change, kind: Any = Tensor) -> dict[str, Any]:
    """A copy of an optimizer state with each ``kind`` changed; ``change`` is told whose it is."""
    copied = {
        key: _walk(value, change, kind, None) for key, value in state.items() if key != "state"
    }
    own = {key: _walk(value, change, kind, key) for key, value in state["state"].items()}
    return {**copied, "state": own}


def _walk(tree: Any, change: Change, kind: Any, owner: Any) -> Any:
    if isinstance(tree, kind):
        return change(tree, owner)
    if isinstance(tree, Mapping):
        return {key: _walk(value, change, kind, owner) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_walk(value, change, kind, owner) for value in tree)
    return tree


def outline(
    state: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with ``state``, and its skeleton: stubs for tensors, scalars stay."""
    problem = _mismatch(state, names)
    if problem:
        return problem, {}
    return None, walk(state, lambda value, _: _stub(value) if value.dim() else value.clone())


def _stub(value: Tensor) -> Stub:
    return Stub(tuple(value.shape), value.dtype)


def tensors(state: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that `outline` left out, in its order."""
    # Step counters must stay where the optimizer wants them, so they travel with the skeleton.
    found: list[Tensor] = []
    walk(state, lambda value, _: found.append(value) if value.dim() else None)
    return iter(found)


def apply_optimizer_state(
    optimizer: Optimizer, state: Mapping[str, Any], names: Sequence[Sequence[str]]
) -> None:
    """Load a state whose tensors are already spread as the parameters are."""
    position = {name: i for i, name in enumerate(name for group in names for name in group)}
    groups = []
    for mine, group_names, saved in zip(
        optimizer.param_groups, names, state["param_groups"], strict=True
    ):
        kept = {key: mine[key] for key in _HOW_NOT_WHAT if key in mine}
        groups.append({**saved, **kept, "params": [position[name] for name in group_names]})
    moved = {position.get(key, key): value for key, value in state["state"].items()}
    optimizer.load_state_dict({**state, "state": moved, "param_groups": groups})


def apply_group_options(optimizer: Optimizer, saved: Sequence[Mapping[str, Any]]) -> None:
    """Load learning rates and other options of the groups, without their parameters."""
    left = ("params", *_HOW_NOT_WHAT)
    for mine, theirs in zip(optimizer.param_groups, saved, strict=True):
        mine.update({key: value for key, value in theirs.items() if key not in left})


def _mismatch(state: Mapping[str, Any], names: Sequence[Sequence[str]]) -> str | None:
    saved = state.get("param_groups")
    if saved is None or "state" not in state:
        return "This is no optimizer state: it lacks 'param_groups' or 'state'."
    if len(saved) != len(names):
        return f"The saved optimizer has {len(saved)} parameter groups, this one {len(names)}."
    problems = []
    for i, (group, here) in enumerate(zip(saved, names, strict=True)):
        problems += [f"group {i} lacks '{name}'" for name in set(here) - set(group["params"])]
        problems += [f"group {i} has also '{name}'" for name in set(group["params"]) - set(here)]
    return (
        _too_long("The saved optimizer does not fit this one", sorted(problems))
        if problems
        else None
    )


def _too_long(what: str, problems: Sequence[str], most: int = 6) -> str:
    more = f" and {len(problems) - most} more" if len(problems) > most else ""
    return f"{what}: {'; '.join(problems[:most])}{more}."
