"""DeepSpeed: ZeRO partitions optimizer state (1), gradients (2) and parameters (3), and offloads them.

The Trainer's loop decides on accumulation and weighs the losses; DeepSpeed averages and clips gradients,
scales fp16 losses and makes the steps. `engine_config` completes and checks its configuration, and
`partitioned_states` reads and writes its state.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from allranks.errors import UsageError
from allranks.runtime.agent.build_locks import remove_stale_locks
from allranks.runtime.world import World
from allranks.train.strategies import named_state_dicts as named_states
from allranks.train.strategies.base import StrategyOptions
from allranks.train.strategies.deepspeed.config_sections import check_batch_size, schedule_params
from allranks.train.strategies.deepspeed.deepspeed_setup import (
    HALF,
    check_compiler,
    check_types,
    compute_in,
    load_deepspeed,
    needed_ops,
)
from allranks.train.strategies.deepspeed.engine_config import (
    SharedOptions,
    add_shorthands,
    complete_config,
    read_config,
    stage_of,
)
from allranks.train.strategies.deepspeed.partitioned_states import PartitionedStrategy
from allranks.train.strategies.deepspeed.partitions import Partitions
from allranks.train.strategies.tensor_collectives import broadcast_tensors

_STEPS_ITSELF = "DeepSpeed makes the whole step of one optimizer"
_REFUSED = {
    "several optimizers": f"{_STEPS_ITSELF}. Use strategy='ddp'.",
    "closure": f"{_STEPS_ITSELF}, with one backward pass. Use strategy='ddp'.",
    "own step": f"{_STEPS_ITSELF}. Return the loss from training_step(model, batch), or use strategy='ddp'.",
    "clip_value": "its gradients are in DeepSpeed's buffers. Use clip_norm.",
    "compile": "its hooks gather parameters while the model runs. Use compile=False.",
}


class DeepSpeed(PartitionedStrategy):
    """``DeepSpeed("ds_config.json")``, ``DeepSpeed({...})``, or ``DeepSpeed(stage=3, offload_optimizer="cpu")``.

    The default is ZeRO 1. Offload to "cpu" or to "nvme:/local/disk".
    """

    name = "deepspeed"
    owns_precision = True
    owns_scaling = True

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        stage: int | None = None,
        offload_optimizer: str | None = None,
        offload_parameters: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        given, self._warned = read_config(config)
        self._given = add_shorthands(given, stage, offload_optimizer, offload_parameters)
        self._config: dict[str, Any] = {}
        self._norm: Tensor | None = None
        self._factor = 1.0
        self._inside_window = False
        self._local_rank: str | None = None

    # Before the first step

    def resolve_options(
        self, options: StrategyOptions, optimizers: Sequence[Optimizer], world: World
    ) -> StrategyOptions:
        """Combine TrainConfig and DeepSpeed's configuration; raise if they contradict each other."""
        own = dataclasses.replace(options, **self._own)
        optimizer = optimizers[0] if optimizers else None
        shared = SharedOptions(
            own.precision,
            own.accumulate,
            own.clip_norm,
            own.warmup_steps,
            world.size,
            type(optimizer).__name__ if optimizer else None,
            optimizer.param_groups[0] if optimizer else {},
        )
        self._config, shared, warned = complete_config(self._given, shared)
        self._print_warnings([*self._warned, *warned], world)
        self._stage, self._precision = stage_of(self._config), shared.precision
        return dataclasses.replace(
            own,
            precision=shared.precision,
            clip_norm=shared.clip_norm,
            warmup_steps=shared.warmup_steps,
        )

    _has_warned = False

    def _print_warnings(self, warnings: Sequence[str], world: World) -> None:
        if world.is_main and not self._has_warned:
            for line in warnings:
                print(f"WARNING: {line}", file=sys.stderr, flush=True)
        self._has_warned = True

    def unsupported_reason(self, feature: str) -> str:
        """Return why DeepSpeed does not support a feature; "" if it does."""
        if feature == "ema" and self._stage == 3:
            return "ZeRO 3 has no whole weights to average. Use stage 1 or 2."
        if feature == "ema" and self._precision in HALF:
            return f"the weights are in {self._precision}, too coarse to average. Use precision='fp32'."
        if feature == "before_step" and self._stage:
            return "ZeRO's gradients are in DeepSpeed's buffers (deepspeed.utils.safe_get_full_grad). Use stage=0."
        if feature in ("scheduler", "lr_scaling") and "scheduler" in self._config:
            return "the DeepSpeed configuration has a scheduler. Use one of them."
        return _REFUSED.get(feature, "")

    def wrap_model(self, optimizers: Sequence[Optimizer]) -> nn.Module:
        self._require_group()
        deepspeed = load_deepspeed(self.device.type)
        check_compiler(deepspeed, needed_ops(self._config))
        if not self.world.local_rank:
            remove_stale_locks(os.environ)
        check_types(self.target)
        target = self.target.to(self.device)
        broadcast_tensors(value.data for value in [*target.parameters(), *target.buffers()])
        trained = [value for value in target.parameters() if value.requires_grad]
        optimizer = optimizers[0] if optimizers else None
        groups = (
            [[*group["params"]] for group in optimizer.param_groups] if optimizer else [trained]
        )
        before, kept = self._state_before(optimizer)
        if self._precision in HALF:
            compute_in(self.model, HALF[self._precision], self.device.type)
        self._start(deepspeed, target, optimizer, trained)
        self._groups = groups
        self._adopt(self._engine.basic_optimizer)
        if before:
            self.load_optimizer(self.optimizers[0], before, named_states.TensorsInMemory(kept))
        return self._engine

    def _start(
        self, deepspeed: Any, target: nn.Module, optimizer: Any, trained: Sequence[Any]
    ) -> None:
        index = self.device.index if self.device.type == "cuda" else self.world.local_rank
        # ZeRO 3 uses it as the index of its GPU, in every step.
        self._local_rank, os.environ["LOCAL_RANK"] = os.environ.get("LOCAL_RANK"), str(index)
        self._engine, *_ = deepspeed.initialize(
            args=SimpleNamespace(device_rank=index),
            model=target,
            optimizer=optimizer,
            model_parameters=[*trained],
            config=self._for_engine(),
            dist_init_required=False,
        )

    def _for_engine(self) -> dict[str, Any]:
        """Return the configuration for the engine, without the schedule and batch, which come later."""
        left = {"scheduler", "train_batch_size"}
        config = {name: value for name, value in self._config.items() if name not in left}
        config.setdefault("train_micro_batch_size_per_gpu", 1)
        if self._clips:
            config["gradient_clipping"] = 0.0
        return config

    @property
    def _clips(self) -> bool:
        return self._stage == 0 and self._precision not in HALF

    def _state_before(self, optimizer: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the state of an optimizer that has already made steps: DeepSpeed would discard it."""
        kept: dict[str, Tensor] = {}
        if optimizer is None or not optimizer.state:
            return {}, kept
        names = named_states.optimizer_names(optimizer, self.model, self.objective)
        named = named_states.name_optimizer_state(optimizer, names)
        tree = named_states.split_tensors(named, "before", kept, counters=True)
        return tree, {key: value.clone() for key, value in kept.items()}

    def _adopt(self, optimizer: Any) -> None:
        if len(optimizer.param_groups) != len(self._groups):
            raise UsageError(
                f"DeepSpeed made {len(optimizer.param_groups)} parameter groups for {type(optimizer).__name__}, "
                "which checkpoints do not support. Pass a torch optimizer to the Trainer."
            )
        if self._stage == 0 and hasattr(self._engine.optimizer, "fp32_groups_flat"):
            raise UsageError(
                f"{type(optimizer).__name__} in {self._precision} without ZeRO is not supported. Use stage=1."
            )
        optimizer.zero_grad = self._zero_grad  # DeepSpeed clears its own buffers
        self.optimizers = [optimizer]
        self._partitions = Partitions(self._engine, self._groups, self.device)

    def _zero_grad(self, set_to_none: bool = True) -> None:
        if self._inside_window:
            raise UsageError(
                "DeepSpeed cannot discard gradients in the middle of an accumulation window. Let each epoch run to "
                "its end, or use accumulate=1."
            )

    def begin_fit(
        self, *, batch_size: int | None, global_batch: int | None, total_steps: int | None
    ) -> None:
        """Check the batch size against the configuration, and create the configuration's schedule."""
        micro = check_batch_size(self._config, batch_size, self.world.size)
        if micro is not None:
            self._engine.set_train_micro_batch_size(micro)
        section = self._config.get("scheduler")
        if section is not None and self._engine.lr_scheduler is None:
            lr_schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
            section["params"] = schedule_params(section, total_steps)
            make = getattr(lr_schedules, section["type"])
            self._engine.lr_scheduler = make(self._engine.optimizer, **section["params"])

    # The step

    def begin_micro_batch(self, last: bool) -> None:
        """Prepare a forward pass; an optimizer step follows the last one."""
        self._engine.set_gradient_accumulation_boundary(last)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of ``loss``; the ZeRO stage determines when they are averaged."""
        self._inside_window = True
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, optimizer: Optimizer) -> None:
        """Clip, step and zero the gradients, and fill in the norm that `clip_norm` returned."""
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        if self._factor != 1.0 and scaler is not None:
            scaler.cur_scale /= self._factor  # the step divides by it
        self._engine.step()
        if self._factor != 1.0 and scaler is not None:
            scaler.cur_scale *= self._factor
        self._factor, self._inside_window = 1.0, False
        if self._norm is not None:
            found = self._engine.get_global_grad_norm()
            self._norm.fill_(float("nan") if found is None else float(found))
            self._norm = None

    def scale_gradients(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Multiply the gradients before a step."""
        outer = self._engine.optimizer
        if hasattr(outer, "loss_scaler") and self._stage:
            self._factor = factor
        elif hasattr(outer, "fp32_groups_gradients_flat"):
            torch._foreach_mul_([*outer.fp32_groups_gradients_flat], factor)
        else:
            super().scale_gradients([p for group in self._groups for p in group], factor)

    def clip_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Return a tensor that the step fills in with the norm: DeepSpeed clips in its step."""
        if self._clips:
            return super().clip_norm(parameters, max_norm)
        self._norm = torch.zeros((), device=self.device)
        return self._norm

    # Between steps

    def end_forward(self, *, failed: bool = False) -> None:
        """Reset the order in which parameters are gathered, after forward passes without a backward pass."""
        if self._stage == 3 and not failed:  # collective: not after an error on one rank
            self._engine.optimizer.parameter_offload.get_param_coordinator().reset_step()

    def settings(self) -> dict[str, Any]:
        """Return the effective configuration."""
        return self._config

    def describe(self) -> str:
        """Return one line for the banner."""
        zero = self._config.get("zero_optimization", {})
        words = [super().describe(), f"ZeRO stage {self._stage}"]
        for name, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
            device = (zero.get(name) or {}).get("device", "none")
            if device != "none":
                words.append(f"{what} on {device}")
        return ", ".join(words)

    def close(self) -> None:
        """Release the engine."""
        super().close()
        self._engine, self._partitions, self._groups = None, None, []
        if self._local_rank is not None:
            os.environ["LOCAL_RANK"] = self._local_rank
