"""``TrainConfig``: everything about a training that is not the model, the optimizer or the data.

One dataclass, one docstring under each field; docs/training.md shows them in groups.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from allranks.core.units import parse_time
from allranks.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import torch

    from allranks.train.callbacks.base import Callback
    from allranks.train.loggers.base import Logger
    from allranks.train.strategies.base import Strategy


@dataclass
class TrainConfig:
    """How to train. Every field has a default that suits a first run."""

    # How long
    epochs: int | None = None
    """Passes over the training data. Without it and without ``max_steps`` and ``max_time``: 1."""
    max_iter: int | None = None
    """Another name for ``epochs``."""
    max_steps: int | None = None
    """Optimizer steps after which training ends, wherever the epoch stands."""
    max_time: str | None = None
    """Training time, over all attempts, after which it ends at a step: "90m", "2h", "0-03:00"."""

    # Where
    nprocs: int | None = None
    """Ranks in all. Plain python starts the missing ones; a launcher's own number wins."""
    backend: str | None = None
    """"nccl", "gloo" or "mpi"; None is nccl with GPUs and gloo without."""
    compute_setup: str = "auto"
    """"cpu", "gpu" (an error without one) or "auto"."""
    strategy: str | Strategy = "auto"
    """"single", "ddp", "fsdp", "deepspeed", "horovod", a Strategy, or "auto": chosen from model size
    and device memory (single, ddp or fsdp)."""
    timeout: str | None = None
    """How long ranks wait for each other: "10m". None is PyTorch's default."""

    # Data
    batch_size_is: str = "per_rank"
    """Whether the DataLoader's batch_size is meant "per_rank" or "global" (shared among the ranks)."""
    lr_scaling: str = "none"
    """Multiply the learning rate by the growth of the batch: "none", "linear" or "sqrt"."""
    lr_base_batch: int | None = None
    """The global batch the learning rate was found for; None: one rank's batch, without accumulation."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from a small fraction to its value."""
    shard_iterable: str | bool = "auto"
    """Give each rank its share of an IterableDataset: True, False (it does so itself), or "auto":
    share it out when all ranks read the same batches."""
    audit: bool = True
    """Check in the first epoch that every sample is seen once over all ranks."""
    prefetch: int = 2
    """Batches copied to the GPU ahead of the step."""

    # The step
    precision: str = "fp32"
    """"fp32", "tf32", "bf16" or "fp16" (mixed: weights stay as they are)."""
    dtype: torch.dtype | None = None
    """Convert the model and floating-point data to this type, for example torch.float64."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step."""
    clip_norm: float | None = None
    """Scale gradients down to this total norm."""
    clip_value: float | None = None
    """Cut every gradient element to this absolute value."""
    compile: str | bool = "auto"
    """torch.compile: True, False, a mode such as "max-autotune", or "auto": when it pays, on GPUs."""
    fused: bool = True
    """Switch torch's own optimizers to their fused kernels."""
    activation_checkpointing: bool | Sequence[str] = False
    """Recompute activations in the backward pass: True for the repeated blocks, or class names."""
    sync_batchnorm: bool = False
    """Batch normalisation over the batches of all ranks."""
    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay; it is what is validated."""
    seed: int | None = None
    """Seeds Python, NumPy, torch and the order of the data. None: torch's present seed on rank 0."""
    deterministic: bool = False
    """Only deterministic algorithms: slower, and an error where there is none."""

    # Validation and early stopping
    val_every: int = 1
    """Validate after every so many epochs, and after the last; 0 never."""
    val_every_steps: int | None = None
    """Validate after every so many steps instead."""
    monitor: str | None = None
    """The metric that decides what is best: None is "val_loss" with validation data, else "train_loss"."""
    mode: str = "min"
    """Whether less ("min") or more ("max") of the monitored metric is better."""
    patience: int | None = None
    """End after so many looks at the monitored metric without progress."""
    val_epsilon: float = 0.0
    """The least change of the monitored metric that counts as progress."""
    validation_criterion: Callable[[float, float, float], bool] | None = None
    """Overrules ``mode``: ``(current, best, val_epsilon) -> bool`` tells whether current is better."""

    # Learning-rate schedule
    scheduler_every: str = "step"
    """Whether the Trainer's ``scheduler`` advances per "step" or per "epoch"."""

    # Output
    name: str | None = None
    """The run's name; None is the script's."""
    root_folder: str = "runs"
    """Where the run folder is made, unless allranks started this process and made it already."""
    verbose: bool = True
    """Say at the start what was chosen and why."""
    summary: bool = True
    """Print the model's layers and sizes at the start."""
    print_every: int = 1
    """Print a line after every so many epochs; 0 never."""
    log_every: int = 50
    """Write training metrics after every so many steps (and every epoch)."""
    tokens_per_sample: int | None = None
    """Positions of a sample, for tokens per second. None: taken from the batch, a dict's ``input_ids`` or
    a first tensor of integers with two dimensions."""
    flops_per_sample: float | None = None
    """Floating-point operations of a sample, forward and backward, for MFU. None: counted in the second
    step, where that changes nothing and the device's peak is known."""
    peak_flops: float | None = None
    """Floating-point operations per second that one device could make. None: looked up for known GPUs."""
    progress: str | bool = "auto"
    """A progress bar on rank 0: True, False, or "auto": on a terminal; plain lines elsewhere."""
    loggers: Sequence[str | Logger] = ()
    """Besides the JSONL file of the run folder: "tensorboard", "mlflow", "wandb", "csv", or a Logger."""
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    """Written down with the run and handed to every logger."""
    log_model: bool = False
    """Hand the trained model to loggers that keep models (MLflow, W&B)."""
    plot_every: int = 0
    """Call ``plotting_functions`` after every so many epochs."""
    plotting_functions: Sequence[Callable[..., Any]] = ()
    """``(model, epoch) -> (name, figure)``; figures go to the run folder and to the loggers."""
    callbacks: Sequence[Callback] = ()
    """See docs/callbacks.md for what they are called with, and when."""

    # Checkpoints
    checkpoint_every: int = 0
    """Save after every so many epochs; 0: only the best and the last."""
    checkpoint_every_steps: int | None = None
    """Save after every so many steps."""
    checkpoint_every_time: str | None = None
    """Save after every so much wall time: "30m"."""
    checkpoint_best_only: bool = False
    """Save only when the monitored metric improves."""
    checkpoint_keep: int = 3
    """How many periodic checkpoints stay; the best and the last stay always."""
    checkpoint_keep_every: str | None = None
    """Keep one more of every such span for good: "6h"."""
    checkpoint_async: bool = True
    """Write in the background while training goes on; False waits until a checkpoint is on the disk."""
    checkpoint: bool = True
    """Whether anything is saved at all."""
    resume: str | bool = "auto"
    """Continue: "auto" (or True) from this run's newest checkpoint, if there is one; False never; a run
    folder or a checkpoint: from there."""
    deadline_margin: str = "30s"
    """Time kept free before the job's end, besides what a save was measured to take."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choices()
        self._check_numbers()
        for text in (
            self.max_time, self.timeout, self.deadline_margin,
            self.checkpoint_every_time, self.checkpoint_keep_every,
        ):  # fmt: skip
            if text is not None:
                parse_time(text)
        if self.epochs is not None and self.max_iter is not None and self.epochs != self.max_iter:
            raise UsageError(
                f"epochs={self.epochs} and max_iter={self.max_iter} mean the same: give one."
            )

    @property
    def last_epoch(self) -> int | None:
        """How many epochs there are; None when steps or time alone end the training."""
        given = self.epochs if self.epochs is not None else self.max_iter
        if given is None and self.max_steps is None and self.max_time is None:
            return 1
        return given

    @property
    def max_seconds(self) -> float | None:
        """``max_time`` in seconds."""
        return None if self.max_time is None else float(parse_time(self.max_time))

    @property
    def timeout_seconds(self) -> float | None:
        """``timeout`` in seconds."""
        return None if self.timeout is None else float(parse_time(self.timeout))

    def _check_types(self) -> None:
        for name in _LEAST:
            value = getattr(self, name)
            whole = not isinstance(value, bool) and isinstance(value, int)
            if value is not None and not (whole or (name in _REAL and isinstance(value, float))):
                what = "a number" if name in _REAL else "a whole number"
                raise UsageError(f"{name}={value!r}: must be {what}.")

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in choices:
                raise UsageError(_not_one_of(name, value, choices))

    def _check_numbers(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name}={value}: must be at least {least}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"ema={self.ema}: a decay between 0 and 1, such as 0.999.")


_CHOICES = {
    "backend": ("nccl", "gloo", "mpi"),
    "compute_setup": ("auto", "cpu", "gpu"),
    "batch_size_is": ("per_rank", "global"),
    "lr_scaling": ("none", "linear", "sqrt"),
    "shard_iterable": ("auto",),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "mode": ("min", "max"),
    "scheduler_every": ("step", "epoch"),
    "progress": ("auto",),
    "compile": (
        "auto", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs",
    ),
}  # fmt: skip
_LEAST = {
    "epochs": 0, "max_iter": 0, "max_steps": 0, "nprocs": 1, "accumulate": 1, "warmup_steps": 0,
    "prefetch": 1, "val_every": 0, "val_every_steps": 1, "patience": 1, "print_every": 0,
    "log_every": 1, "plot_every": 0, "checkpoint_every": 0, "checkpoint_every_steps": 1,
    "checkpoint_keep": 1, "lr_base_batch": 1, "val_epsilon": 0, "clip_norm": 0, "clip_value": 0,
    "tokens_per_sample": 1, "flops_per_sample": 0, "peak_flops": 0,
}  # fmt: skip

_REAL = ("val_epsilon", "clip_norm", "clip_value", "flops_per_sample", "peak_flops")


def _not_one_of(name: str, value: str, choices: Sequence[str]) -> str:
    hint = did_you_mean(value, choices)
    return f"{name}='{value}': must be one of {', '.join(choices)}.{hint}"


def _told_unknown_names(cls: type[TrainConfig]) -> None:
    """A mistyped field is named together with the one that was meant."""
    made = cls.__init__
    known = [entry.name for entry in dataclasses.fields(cls)]

    @functools.wraps(made)
    def init(self: TrainConfig, *args: Any, **values: Any) -> None:
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known)
                raise UsageError(f"TrainConfig has no field '{name}'.{hint}")
        made(self, *args, **values)

    cls.__init__ = init  # type: ignore[method-assign]


_told_unknown_names(TrainConfig)
