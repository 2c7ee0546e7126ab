"""FSDP2: every rank holds a shard of each parameter and gathers those of a block while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.errors import MissingDependencyError
from allranks.train.strategies.base import MultiRankStrategy
from allranks.train.strategies.module_wrapping import blocks, outer_blocks, unwrap
from allranks.train.strategies.named_state_dicts import TensorSource
from allranks.train.strategies.tensor_collectives import broadcast_tensors

try:  # torch 2.6
    from torch.distributed import fsdp as api
    from torch.distributed.tensor import DTensor, distribute_tensor

    api.fully_shard  # noqa: B018
except (ImportError, AttributeError):
    try:  # torch 2.4
        from torch.distributed._composable import fsdp as api
        from torch.distributed._tensor import DTensor, distribute_tensor
    except ImportError:
        api = None

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class FSDP(MultiRankStrategy):
    """``FSDP(wrap=["Block"], cpu_offload=True)``. The model is sharded in place and called as before.

    In bf16 and fp16 the shards keep their type, parameters are gathered in 16 bits, gradients are averaged
    in fp32, the model runs under autocast, which combines them with fp32 buffers, and its outputs are fp32.
    """

    name = "fsdp"
    owns_precision = True

    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        if api is None:
            raise MissingDependencyError(
                f"The fsdp strategy needs torch 2.4 or newer, but this is {torch.__version__}. "
                "Install it with: pip install 'torch>=2.4'"
            )
        self._require_group()
        owners = _owners(self.target)
        self._blocks = outer_blocks(self.model, blocks(self.model, self.options.wrap))
        self._mesh = torch.distributed.init_device_mesh(self.device.type, (self.world.size,))
        self._shard_all()
        half = _HALF.get(self.options.precision)
        if half is not None:
            self.model.forward = torch.autocast(self.device.type, half)(self.model.forward)
        self._sharded = [part for part in self.target.modules() if isinstance(part, api.FSDPModule)]
        for optimizer in optimizers:
            self._repoint(optimizer, owners)
        return self.target

    @property
    def _offloads(self) -> bool:
        return bool(self.options.cpu_offload and self.device.type != "cpu")

    def _shard_all(self) -> None:
        """Shard block after block, so that no device ever holds the whole model."""
        half = _HALF.get(self.options.precision)
        short = {} if half is None else {"param_dtype": half, "reduce_dtype": torch.float32}
        for block in self._blocks:
            self._shard(block, api.MixedPrecisionPolicy(**short), keep=False)
        outputs = {} if half is None else {"output_dtype": torch.float32}
        self._shard(self.model, api.MixedPrecisionPolicy(**short, **outputs), keep=True)
        outside = _outside(self.target, self.model)
        _move_buffers(outside, self.device)
        if any(True for part in outside for _ in part.parameters(recurse=False)):
            # The objective has parameters itself: it becomes the root, without casting its inputs.
            policy = api.MixedPrecisionPolicy(cast_forward_inputs=False)
            self._shard(self.target, policy, keep=True)
        broadcast_tensors(self.target.buffers())

    def _shard(self, module: nn.Module, policy: Any, *, keep: bool) -> None:
        """Broadcast rank 0's parameters, then shard them."""
        whole = [value for value in module.parameters() if not isinstance(value, DTensor)]
        with torch.no_grad():
            for value in whole:
                value.data = value.data.to(self.device)
        broadcast_tensors(value.data for value in whole)
        offload = {"offload_policy": api.CPUOffloadPolicy()} if self._offloads else {}
        api.fully_shard(
            module, mesh=self._mesh, reshard_after_forward=not keep, mp_policy=policy, **offload
        )

    def _repoint(self, optimizer: Optimizer, owners: dict[int, tuple[nn.Module, str]]) -> None:
        """Replace the optimizer's whole parameters by the sharded ones, with their state."""
        for group in optimizer.param_groups:
            for i, old in enumerate(group["params"]):
                if id(old) not in owners:
                    continue
                module, name = owners[id(old)]
                new = group["params"][i] = getattr(module, name)
                state = optimizer.state.pop(old, None)
                if state is not None:
                    optimizer.state[new] = {
                        key: self._shard_state(value, new) for key, value in state.items()
                    }

    def begin_micro_batch(self, last: bool) -> None:
        """Prepare a forward pass; only the last one of a step averages gradients over the ranks."""
        if last is not self._averages:
            self._averages = last
            for part in self._sharded:
                part.set_requires_gradient_sync(last, recurse=False)

    _averages = True

    @contextmanager
    def full_parameters(self) -> Iterator[None]:
        """Gather the model's parameters for reading; changes inside are lost. Collective."""
        for part in self._sharded:
            part.unshard()
        try:
            yield
        finally:
            self._reshard()

    def describe(self) -> str:
        """Return one line for the banner."""
        kinds = sorted(
            {type(unwrap(block)).__name__.removeprefix("FSDP") for block in self._blocks}
        )
        parts = (
            f"{len(self._blocks)} blocks ({', '.join(kinds)}) and the rest" if kinds else "whole"
        )
        half = f", computing in {self.options.precision}" if self.options.precision in _HALF else ""
        where = ", shards in CPU memory" if self._offloads else ""
        return f"{super().describe()}, sharded {parts}{half}{where}"

    def close(self) -> None:
        """Release the sharded modules."""
        super().close()
        self._blocks, self._sharded, self._mesh = [], [], None

    def end_forward(self, *, failed: bool = False) -> None:
        """Reshard the root, which keeps whole parameters until a backward pass."""
        self._reshard()

    def _reshard(self) -> None:
        # After a forward pass without a backward pass the root still has whole parameters.
        for part in self._sharded:
            part.reshard()

    def _entries(self) -> dict[str, Any]:
        self._reshard()
        return super()._entries()

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        self._reshard()
        return super()._names(optimizer)

    def _full(self, value: Tensor) -> Tensor:
        # Offloaded shards are gathered on the device: NCCL does not support CPU tensors.
        return value.to(self.device).full_tensor() if isinstance(value, DTensor) else value

    def like_parameter(self, parameter: Any, local: Tensor) -> Any:
        """Return a tensor of the size of this rank's shard as a DTensor like the parameter."""
        if not isinstance(parameter, DTensor):
            return local
        return DTensor.from_local(
            local, parameter.device_mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip

    def _assign(self, pairs: Sequence[tuple[Tensor, str]], source: TensorSource) -> None:
        """Read this rank's shards, and whole tensors where they are not sharded."""
        from allranks.train.checkpoint.dcp import load

        load({key: target.detach() for target, key in pairs}, source.path)

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype, parameter: Any) -> Tensor:
        if not isinstance(parameter, DTensor) or shape != tuple(parameter.shape):
            return super()._allocate(shape, dtype, parameter)
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)

    def _shard_state(self, value: Any, parameter: Any) -> Any:
        """Shard optimizer state from before the sharding, which every rank holds whole."""
        if not isinstance(value, Tensor) or not value.dim():
            return value
        value = value.to(self.device)
        broadcast_tensors([value])
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def _owners(target: nn.Module) -> dict[int, tuple[nn.Module, str]]:
    """Return the module and name of each parameter, to find it after sharding has replaced it."""
    return {
        id(value): (part, name)
        for part in target.modules()
        for name, value in part.named_parameters(recurse=False)
    }


def _outside(target: nn.Module, model: nn.Module) -> list[nn.Module]:
    inside = {id(part) for part in model.modules()}
    return [part for part in target.modules() if id(part) not in inside]


def _move_buffers(parts: Sequence[nn.Module], device: torch.device) -> None:
    for part in parts:
        for name, value in part._buffers.items():
            part._buffers[name] = None if value is None else value.to(device)
