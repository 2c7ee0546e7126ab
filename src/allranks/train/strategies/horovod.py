"""Horovod: every rank holds the model; Horovod averages the gradients during the backward pass.

The user's optimizer makes the steps. Gradients go through ``hvd.DistributedOptimizer`` and are averaged when
a backward pass returns, as with DDP: so clipping, loss scaling, several optimizers, closures and custom
steps work the same. Everything else (metrics, checkpoints, the audit) goes through torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from allranks.errors import UsageError, did_you_mean
from allranks.runtime.world import horovod_init as horovod
from allranks.train.strategies.base import MultiRankStrategy
from allranks.train.strategies.horovod_ops import AdasumSteps, GradientAverager, average_existing
from allranks.train.strategies.module_wrapping import move_state, state_tensors
from allranks.train.strategies.tensor_collectives import broadcast_tensors

COMPRESSIONS = ("none", "fp16")
OPS = ("average", "adasum")
_TYPES = (torch.float16, torch.float32, torch.float64)


class Horovod(MultiRankStrategy):
    """``Horovod(compression="fp16")`` sends gradients in half precision.

    ``op="adasum"`` combines the ranks' steps by Adasum instead of averaging their gradients.
    ``gradient_predivide_factor`` divides before the sum and multiplies after it, against overflow in
    fp16. ``sparse_as_dense`` sends sparse gradients as dense ones.
    """

    name = "horovod"

    def __init__(
        self,
        *,
        compression: str = "none",
        op: str = "average",
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        _check_one_of("compression", compression, COMPRESSIONS)
        _check_one_of("op", op, OPS)
        if gradient_predivide_factor <= 0:
            raise UsageError(
                f"gradient_predivide_factor={gradient_predivide_factor}: must be above 0."
            )
        if op == "adasum" and gradient_predivide_factor != 1.0:
            raise UsageError("gradient_predivide_factor works with op='average' only.")
        self.compression, self.op = compression, op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self._gradients: GradientAverager | None = None
        self._steps: AdasumSteps | None = None
        self._hvd: Any = None

    def setup(self, model: nn.Module, optimizers: Sequence[Optimizer], **known: Any) -> nn.Module:
        """Set up as other strategies do, after rejecting synchronized batch norms on GPUs."""
        asked = self._own.get("sync_batchnorm", known["options"].sync_batchnorm)
        if known["device"].type == "cuda" and known["world"].size > 1:
            _reject_synchronized(model, asked)
        return super().setup(model, optimizers, **known)

    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        self._require_group()
        self._hvd = horovod.require_horovod()
        target = self.target.to(self.device)
        trained = [(name, value) for name, value in _named(target) if value.requires_grad]
        self._check(trained)  # first: Horovod's threads would print errors after a failure
        horovod.init_horovod(self.world)
        if self.op == "adasum":
            self._check_adasum()
        broadcast_tensors([*target.parameters(), *target.buffers()])
        move_state(optimizers)
        broadcast_tensors(state_tensors(optimizers))
        compressor = getattr(self._hvd.Compression, self.compression)
        if self.op == "adasum":
            if self.world.size > 1:
                self._steps = AdasumSteps(self._hvd, optimizers, trained, compressor)
            return target
        self._gradients = GradientAverager(
            self._hvd,
            trained,
            find_unused=self.options.find_unused_parameters,
            compression=compressor,
            gradient_predivide_factor=self.gradient_predivide_factor,
            sparse_as_dense=self.sparse_as_dense,
        )
        return _AveragingModule(target, self._gradients)

    def unsupported_reason(self, feature: str) -> str:
        """Return why Horovod does not support a feature; "" if it does."""
        if feature == "closure" and self.op == "adasum":
            return (
                "adasum combines whole steps, but a closure computes many in one. Use op='average'."
            )
        return ""

    def begin_micro_batch(self, last: bool) -> None:
        """Prepare a forward pass; only the last one of a step averages gradients over the ranks."""
        if self._gradients is not None:
            self._gradients.enabled = last

    def reduce_gradients(self, parameters: Iterable[Any]) -> None:
        """Average the gradients of a backward pass that did not average them. Collective."""
        if self.op == "average" and self.world.size > 1:
            average_existing(
                self._hvd, parameters, getattr(self._hvd.Compression, self.compression)
            )

    def describe(self) -> str:
        """Return one line for the banner."""
        words = [f"{super().describe()} by {'mpi' if self._hvd.mpi_enabled() else 'gloo'}"]
        words += [f"compression {self.compression}"] if self.compression != "none" else []
        words += ["adasum"] if self.op == "adasum" else []
        return ", ".join(words)

    def close(self) -> None:
        """Release the model and end Horovod's threads."""
        for part in (self._gradients, self._steps):
            if part is not None:
                part.close()
        self._gradients = self._steps = None
        if self._hvd is not None and self._hvd.is_initialized():
            self._hvd.shutdown()
        super().close()

    def _check(self, trained: Sequence[tuple[str, Tensor]]) -> None:
        if not trained:
            raise UsageError(
                "The model has no trainable parameter (requires_grad), so horovod has nothing to "
                "average. Unfreeze some, or use one process."
            )
        if self.device.type == "cuda" and not (self._hvd.cuda_built() or self._hvd.rocm_built()):
            raise UsageError(
                "This Horovod was built without CUDA and cannot average gradients on GPUs.\n"
                "Load nvcc and NCCL and build it again (allranks frameworks install horovod), or use "
                "compute_setup='cpu'."
            )
        for name, value in trained:
            if value.dtype not in _TYPES:
                raise UsageError(
                    f"Horovod cannot send gradients of type {value.dtype}, which {name} has. "
                    "Use precision='bf16' (weights stay in fp32), or strategy='ddp'."
                )
            if not value.is_contiguous():
                raise UsageError(
                    f"Horovod sends contiguous tensors only, but {name} is not (channels_last?). "
                    "Leave out memory_format, or use strategy='ddp'."
                )

    def _check_adasum(self) -> None:
        size = self.world.size
        if size > 1 and not self._hvd.mpi_enabled():
            raise UsageError(
                "op='adasum' works through MPI only, but Horovod uses gloo here. Start the ranks by "
                "mpirun (--launcher mpirun) with a Horovod that was built with MPI, or use op='average'."
            )
        if size & (size - 1):
            raise UsageError(f"op='adasum' needs 2, 4, 8 … ranks, not {size}.")
        if self.options.precision == "fp16":
            raise UsageError("op='adasum' does not work with precision='fp16': use 'bf16'.")


class _AveragingModule(nn.Module):
    """The objective; a forward pass through it prepares the averaging of its gradients."""

    def __init__(self, module: nn.Module, gradients: GradientAverager) -> None:
        super().__init__()
        self.module = module
        self._gradients = gradients

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._gradients.expect()
        return self.module(*args, **kwargs)


def _named(target: nn.Module) -> list[tuple[str, Tensor]]:
    return [*target.named_parameters()]


def _reject_synchronized(model: nn.Module, asked: bool) -> None:
    """Raise UsageError for synchronized batch norms: torch's NCCL and Horovod's may deadlock."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm) or (asked and isinstance(module, _BatchNorm)):
            what = "sync_batchnorm=True" if asked else "The model holds nn.SyncBatchNorm, which"
            raise UsageError(
                f"{what} does not work with horovod on GPUs: batch norms use torch's NCCL while gradients "
                "use Horovod's, and both may hang. Leave it out, or use strategy='ddp'."
            )


def _check_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        hint = did_you_mean(value, list(known))
        raise UsageError(f"Horovod({name}='{value}'): must be one of {', '.join(known)}.{hint}")
