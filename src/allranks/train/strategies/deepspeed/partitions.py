"""Whole parameters and optimizer states out of DeepSpeed's pieces, and back into them.

`Partitions` knows where one engine keeps them: ZeRO 0 keeps them whole, ZeRO 1 and 2 keep this rank's stretch of
all parameters laid end to end, ZeRO 3 a part of each parameter. Methods marked collective are called by all
ranks in the same order.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from allranks.errors import UsageError
from allranks.train.checkpoint.write_plan import FlatShard
from allranks.train.strategies.tensor_collectives import broadcast_tensors


class Partitions:
    """The parameters and states of one engine; ``groups`` are the parameters by optimizer group."""

    def __init__(self, engine: Any, groups: Sequence[Sequence[Any]], device: torch.device) -> None:
        self.engine = engine
        self.device = device
        self.stage = int(engine.zero_optimization_stage())
        self.optimizer = engine.basic_optimizer
        self._outer = engine.optimizer
        self._group_of = {
            id(parameter): number for number, group in enumerate(groups) for parameter in group
        }
        self._masters = dict(self._whole_masters())

    def _whole_masters(self) -> Iterator[tuple[int, Tensor]]:
        """Without ZeRO, half precision keeps an fp32 twin of each parameter."""
        if self.stage == 0 and hasattr(self._outer, "fp32_groups"):
            for halves, wholes in zip(
                self._outer.fp16_groups, self._outer.fp32_groups, strict=True
            ):
                for half, whole in zip(halves, wholes, strict=True):
                    yield id(half), whole

    def get(self, parameter: Any) -> Tensor:
        """The whole parameter, in fp32 where there is such a copy. Collective."""
        short = parameter.dtype in (torch.bfloat16, torch.float16)
        if id(parameter) in self._masters:
            return self._masters[id(parameter)].detach()
        if short and self._is_split(parameter):
            whole: Tensor = _utils().safe_get_full_fp32_param(parameter)
            return whole
        if not hasattr(parameter, "ds_id"):
            return parameter.detach()
        with gather([parameter]):
            return parameter.detach().clone()

    def held(self, parameter: Any) -> Any:
        """What of a parameter this rank holds: all of it, or its FlatShard; fp32 where there is such a copy."""
        if self._in_files:
            return self.get(
                parameter
            )  # a partition that is not in memory: gathered, so that it can be saved
        if id(parameter) in self._masters:
            return self._masters[id(parameter)].detach()
        short = parameter.dtype in (torch.bfloat16, torch.float16)
        if self._is_split(parameter) and (short or hasattr(parameter, "ds_id")):
            return self._stretch(parameter, self._flat(parameter).detach())
        if hasattr(parameter, "ds_id"):  # not trained: no optimizer knows it
            part, start = (
                parameter.ds_tensor.detach(),
                self._rank_in(parameter) * parameter.ds_tensor.ds_numel,
            )
            count = max(0, min(part.numel(), parameter.ds_numel - start))
            return FlatShard(
                part.flatten()[:count], tuple(parameter.ds_shape), start if count else 0
            )
        return parameter.detach()

    def _stretch(self, parameter: Any, flat: Tensor) -> FlatShard:
        """This rank's row of a parameter, or of a state beside it, out of the flat tensor."""
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if self.stage == 3:
            _, own, size = self._place(parameter)
            start = self._rank_in(parameter) * size
            count = max(0, min(size, parameter.ds_numel - start))  # the last may be short
        elif parameter._hp_mapping is None:
            own = start = count = 0
        else:
            inside, mine = (
                parameter._hp_mapping.lp_fragment_address,
                parameter._hp_mapping.hp_fragment_address,
            )
            own, start, count = mine.start, inside.start, inside.numel
        return FlatShard(flat.narrow(0, own, count), shape, start if count else 0)

    def _rank_in(self, parameter: Any) -> int:
        return int(self._outer._get_param_partition_rank(parameter))

    @property
    def _in_files(self) -> bool:
        return bool(getattr(self._outer, "swap_optimizer", False)) or bool(
            getattr(self._outer, "params_in_nvme_and_cpu", False)
        )

    def set(self, parameter: Any, source: Tensor | None) -> None:
        """Rank 0's values everywhere, also in the fp32 copy. Collective."""
        self._refuse_files()
        whole = self.spread(source, getattr(parameter, "ds_shape", parameter.shape), torch.float32)
        if hasattr(parameter, "ds_id"):
            self._set_partitioned(parameter, whole)
        else:
            parameter.data.copy_(whole)
        if id(parameter) in self._masters:
            self._masters[id(parameter)].data.copy_(whole)
        elif self._is_split(parameter):
            flat = self._flat(parameter)
            self._write(flat, parameter, whole)

    def _set_partitioned(self, parameter: Any, whole: Tensor) -> None:
        with gather([parameter], modifier_rank=0):
            parameter.data.copy_(whole)

    def spread(self, source: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Rank 0's tensor on every rank. Collective."""
        whole = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        if source is not None:
            whole.copy_(source)
        broadcast_tensors([whole])
        return whole

    # The optimizer's state

    def state(self, parameter: Any) -> dict[str, Any]:
        """The optimizer's state of one parameter: whole tensors and single numbers. Collective."""
        if not parameter.requires_grad or id(parameter) not in self._group_of:
            return {}
        kept = self.optimizer.state.get(self._flat(parameter), {})
        return {
            key: self._whole_state(parameter, key, value) if _is_large(value) else value
            for key, value in kept.items()
        }

    def held_state(self, parameter: Any) -> dict[str, Any]:
        """What of the optimizer's state of a parameter this rank holds."""
        if self._in_files:
            return self.state(parameter)
        if not parameter.requires_grad or id(parameter) not in self._group_of:
            return {}
        kept = self.optimizer.state.get(self._flat(parameter), {})
        split = self._is_split(parameter)
        return {
            key: self._stretch(parameter, value) if split and _is_large(value) else value
            for key, value in kept.items()
        }

    def _whole_state(self, parameter: Any, key: str, value: Tensor) -> Tensor:
        if not self._is_split(parameter):
            return value
        if self.stage == 3:
            whole: Tensor = _utils().safe_get_full_optimizer_state(parameter, key)
            return whole
        flat = torch.zeros(parameter.numel(), dtype=value.dtype, device=self.device)
        place = parameter._hp_mapping
        if place is not None:
            inside, own = place.lp_fragment_address, place.hp_fragment_address
            flat.narrow(0, inside.start, inside.numel).copy_(value.narrow(0, own.start, own.numel))
        dist.all_reduce(flat, group=parameter._dp_group)
        return flat.view(parameter.shape)

    def set_state(self, parameter: Any, key: str, value: Any) -> None:
        """A whole tensor (on every rank) or a number into the optimizer's state."""
        self._refuse_files()
        flat = self._flat(parameter)
        kept = self.optimizer.state[flat]
        if not _is_large(value):
            kept[key] = self._counter(parameter, value)
        elif not self._is_split(parameter):
            kept[key] = value.to(flat.device)
        else:
            if key not in kept:
                kept[key] = torch.zeros_like(flat, dtype=value.dtype)
            self._write(kept[key], parameter, value)

    def _counter(self, parameter: Any, value: Any) -> Any:
        """Step counters live beside the parameter for fused kernels, else on the CPU."""
        if not isinstance(value, Tensor):
            return value
        group = self.optimizer.param_groups[self._group_of[id(parameter)]]
        beside = group.get("fused") or group.get("capturable")
        return value.clone().to(self._flat(parameter).device if beside else "cpu")

    def _refuse_files(self) -> None:
        if getattr(self._outer, "swap_optimizer", False):
            raise UsageError(
                "An optimizer that is offloaded to NVMe keeps its state in files, and nothing can be loaded into "
                "them.\nResume with offload_optimizer='cpu'."
            )

    # Where things are

    def _is_split(self, parameter: Any) -> bool:
        trained = parameter.requires_grad and id(parameter) in self._group_of
        return trained and (hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"))

    def _flat(self, parameter: Any) -> Any:
        """What the optimizer inside steps for this parameter."""
        outer = self._outer
        if self.stage == 3:
            return outer.fp32_partitioned_groups_flat[self._place(parameter)[0]]
        if not self._is_split(parameter):
            return self._masters.get(id(parameter), parameter)
        name = "single_partition_of_fp32_groups"
        flats = getattr(outer, name if hasattr(outer, name) else "fp32_groups_flat_partition")
        return flats[self._group_of[id(parameter)]]

    def _place(self, parameter: Any) -> tuple[int, int, int]:
        place: tuple[int, int, int] = self._outer.grad_position[self._outer.get_param_id(parameter)]
        return place

    def _write(self, flat: Tensor, parameter: Any, whole: Tensor) -> None:
        """This rank's stretch of a whole tensor into the flat one."""
        numbers = whole.detach().flatten()
        if self.stage == 3:
            _, start, count = self._place(parameter)
            rank = self._rank_in(parameter)
            numbers = numbers[rank * count : (rank + 1) * count]  # the last may be short
            flat.data.narrow(0, start, numbers.numel()).copy_(numbers)
        elif parameter._hp_mapping is not None:
            inside, own = (
                parameter._hp_mapping.lp_fragment_address,
                parameter._hp_mapping.hp_fragment_address,
            )
            part = numbers.narrow(0, inside.start, inside.numel)
            flat.data.narrow(0, own.start, own.numel).copy_(part)


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def gather(parameters: Sequence[Any], modifier_rank: int | None = None) -> Any:
    """Inside, ZeRO 3's parameters are whole; ``modifier_rank``'s changes become everyone's."""
    zero = importlib.import_module("deepspeed").zero
    return zero.GatheredParameters([*parameters], modifier_rank=modifier_rank)


def _utils() -> Any:
    return importlib.import_module("deepspeed.utils")
