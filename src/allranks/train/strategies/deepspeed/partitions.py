"""Read and write whole parameters and optimizer states in DeepSpeed's partitions.

ZeRO 0 keeps them whole, ZeRO 1 and 2 this rank's range of all flattened parameters, ZeRO 3 a part of each
parameter. Methods marked collective are called by all ranks in the same order.
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
        """Yield the fp32 copy of each parameter that half precision without ZeRO keeps."""
        if self.stage == 0 and hasattr(self._outer, "fp32_groups"):
            for halves, wholes in zip(
                self._outer.fp16_groups, self._outer.fp32_groups, strict=True
            ):
                for half, whole in zip(halves, wholes, strict=True):
                    yield id(half), whole

    def get(self, parameter: Any) -> Tensor:
        """Return the whole parameter, in fp32 if there is such a copy. Collective."""
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

    def own_part(self, parameter: Any) -> Any:
        """Return this rank's part of a parameter, whole or as a FlatShard; in fp32 if there is such a copy."""
        if self._is_on_nvme:
            return self.get(
                parameter
            )  # a partition on NVMe is not in memory: it is gathered for saving
        if id(parameter) in self._masters:
            return self._masters[id(parameter)].detach()
        short = parameter.dtype in (torch.bfloat16, torch.float16)
        if self._is_split(parameter) and (short or hasattr(parameter, "ds_id")):
            return self._shard_of(parameter, self._flat(parameter).detach())
        if hasattr(parameter, "ds_id"):  # frozen: not in the optimizer
            part, start = (
                parameter.ds_tensor.detach(),
                self._rank_in(parameter) * parameter.ds_tensor.ds_numel,
            )
            count = max(0, min(part.numel(), parameter.ds_numel - start))
            return FlatShard(
                part.flatten()[:count], tuple(parameter.ds_shape), start if count else 0
            )
        return parameter.detach()

    def _shard_of(self, parameter: Any, flat: Tensor) -> FlatShard:
        """Return this rank's range of a parameter, or of its optimizer state, in the flat tensor."""
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if self.stage == 3:
            _, own, size = self._position(parameter)
            start = self._rank_in(parameter) * size
            count = max(0, min(size, parameter.ds_numel - start))  # the last may be shorter
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
    def _is_on_nvme(self) -> bool:
        return bool(getattr(self._outer, "swap_optimizer", False)) or bool(
            getattr(self._outer, "params_in_nvme_and_cpu", False)
        )

    def set(self, parameter: Any, source: Tensor | None) -> None:
        """Set a parameter and its fp32 copy to rank 0's values on all ranks. Collective."""
        self._reject_nvme()
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
        """Broadcast rank 0's tensor to every rank. Collective."""
        whole = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        if source is not None:
            whole.copy_(source)
        broadcast_tensors([whole])
        return whole

    # The optimizer's state

    def state(self, parameter: Any) -> dict[str, Any]:
        """Return the optimizer's state of one parameter: whole tensors and scalars. Collective."""
        if not parameter.requires_grad or id(parameter) not in self._group_of:
            return {}
        kept = self.optimizer.state.get(self._flat(parameter), {})
        return {
            key: self._whole_state(parameter, key, value) if _is_large(value) else value
            for key, value in kept.items()
        }

    def own_state(self, parameter: Any) -> dict[str, Any]:
        """Return this rank's part of the optimizer's state of a parameter."""
        if self._is_on_nvme:
            return self.state(parameter)
        if not parameter.requires_grad or id(parameter) not in self._group_of:
            return {}
        kept = self.optimizer.state.get(self._flat(parameter), {})
        split = self._is_split(parameter)
        return {
            key: self._shard_of(parameter, value) if split and _is_large(value) else value
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
        """Set a whole tensor (given on every rank) or a scalar in the optimizer's state."""
        self._reject_nvme()
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
        """Put step counters on the parameter's device for fused optimizers, otherwise on the CPU."""
        if not isinstance(value, Tensor):
            return value
        group = self.optimizer.param_groups[self._group_of[id(parameter)]]
        beside = group.get("fused") or group.get("capturable")
        return value.clone().to(self._flat(parameter).device if beside else "cpu")

    def _reject_nvme(self) -> None:
        if getattr(self._outer, "swap_optimizer", False):
            raise UsageError(
                "An optimizer that is offloaded to NVMe cannot be loaded: its state is in DeepSpeed's files.\n"
                "Resume with offload_optimizer='cpu'."
            )

    # Positions in the flat tensors

    def _is_split(self, parameter: Any) -> bool:
        trained = parameter.requires_grad and id(parameter) in self._group_of
        return trained and (hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"))

    def _flat(self, parameter: Any) -> Any:
        """Return the tensor that DeepSpeed's inner optimizer steps for this parameter."""
        outer = self._outer
        if self.stage == 3:
            return outer.fp32_partitioned_groups_flat[self._position(parameter)[0]]
        if not self._is_split(parameter):
            return self._masters.get(id(parameter), parameter)
        name = "single_partition_of_fp32_groups"
        flats = getattr(outer, name if hasattr(outer, name) else "fp32_groups_flat_partition")
        return flats[self._group_of[id(parameter)]]

    def _position(self, parameter: Any) -> tuple[int, int, int]:
        place: tuple[int, int, int] = self._outer.grad_position[self._outer.get_param_id(parameter)]
        return place

    def _write(self, flat: Tensor, parameter: Any, whole: Tensor) -> None:
        """Copy this rank's range of a whole tensor to the flat one."""
        numbers = whole.detach().flatten()
        if self.stage == 3:
            _, start, count = self._position(parameter)
            rank = self._rank_in(parameter)
            numbers = numbers[rank * count : (rank + 1) * count]  # the last may be shorter
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
    """Gather ZeRO 3's parameters; the changes of ``modifier_rank`` are broadcast at the end."""
    zero = importlib.import_module("deepspeed").zero
    return zero.GatheredParameters([*parameters], modifier_rank=modifier_rank)


def _utils() -> Any:
    return importlib.import_module("deepspeed.utils")
