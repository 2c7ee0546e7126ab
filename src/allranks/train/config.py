"""``TrainConfig``: everything about a training but the model, the optimizer, the loss and the data.

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

    from allranks.train.loggers.base import Logger
    from allranks.train.strategies.base import Strategy


@dataclass
class TrainConfig:
    """How to train. Every field has a default that suits a first run."""

    # How long
    epochs: int | None = None
    """Passes over the training data; 1 if ``max_steps`` and ``max_time`` are not given either."""
    max_iter: int | None = None
    """Another name for ``epochs``."""
    max_steps: int | None = None
    """Optimizer steps after which training ends, also within an epoch."""
    max_time: str | None = None
    """Training time, over all attempts, after which it ends at a step: "90m", "2h", "0-03:00"."""

    # Where
    nprocs: int | None = None
    """Total number of ranks. Plain python starts the missing ones; a launcher's number takes precedence."""
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
    """Whether the DataLoader's batch_size is "per_rank" or "global" (divided among the ranks)."""
    lr_scaling: str = "none"
    """Scale the learning rate with the batch: "none", "linear" or "sqrt"."""
    lr_base_batch: int | None = None
    """The global batch for which the learning rate was chosen; None: one rank's batch, not accumulated."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from a small fraction to its value."""
    shard_iterable: str | bool = "auto"
    """Give each rank its part of an IterableDataset: True, False (the dataset does so itself), or "auto":
    when all ranks read the same batches."""
    audit: bool = True
    """Check in the first epoch that every sample is seen exactly once over all ranks."""
    prefetch: int = 2
    """Batches copied to the GPU ahead of the step."""

    # The step
    precision: str = "fp32"
    """"fp32", "tf32", "bf16" or "fp16" (mixed precision: weights keep their type)."""
    dtype: torch.dtype | None = None
    """Convert the model and floating-point data to this type, for example torch.float64."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step."""
    clip_norm: float | None = None
    """Clip gradients to this total norm."""
    clip_value: float | None = None
    """Clip every gradient element to this absolute value."""
    compile: str | bool = "auto"
    """torch.compile: True, False, a mode such as "max-autotune", or "auto": on GPUs, when it saves time."""
    fused: bool = True
    """Switch torch's own optimizers to their fused kernels."""
    activation_checkpointing: bool | Sequence[str] = False
    """Recompute activations in the backward pass: True for repeated blocks, or names of classes."""
    sync_batchnorm: bool = False
    """Compute batch normalization over the batches of all ranks."""
    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay, and validate with it."""
    seed: int | None = None
    """Seed of Python, NumPy, torch and the order of the data. None: torch's current seed on rank 0."""
    deterministic: bool = False
    """Use only deterministic algorithms: slower, and an error where there is none."""

    # Validation and early stopping
    val_every: int = 1
    """Validate every N epochs, and after the last; 0: never."""
    val_every_steps: int | None = None
    """Validate every N steps instead."""
    max_val_batches: int | None = None
    """Batches of a validation or test, at most; None: all."""
    monitor: str | None = None
    """The metric that decides what is best; None: "val_loss" with validation data, else "train_loss"."""
    mode: str = "min"
    """Whether a lower ("min") or higher ("max") value of the monitored metric is better."""
    patience: int | None = None
    """Stop early after N values of the monitored metric in a row without progress."""
    val_epsilon: float = 0.0
    """The smallest change of the monitored metric that counts as progress."""
    validation_criterion: Callable[[float, float, float], bool] | None = None
    """Overrides ``mode``: ``(current, best, val_epsilon) -> bool``, whether current is better."""

    # Learning-rate schedule
    scheduler_every: str = "step"
    """Whether the Trainer's ``scheduler`` is stepped per "step" or per "epoch"."""

    # Output
    name: str | None = None
    """The name of the run; None: that of the script."""
    root_folder: str = "runs"
    """Where the run folder is created, unless allranks started this process and created it already."""
    verbose: bool = True
    """Print at the start what was chosen and why."""
    summary: bool = True
    """Print the model's layers and sizes at the start."""
    print_every: int = 1
    """Print a line every N epochs; 0: never."""
    log_every: int = 50
    """Write training metrics every N steps (and every epoch)."""
    tokens_per_sample: int | None = None
    """Positions of a sample, for tokens per second. None: taken from the batch: a dict's ``input_ids``, or
    a first tensor of integers with two dimensions."""
    flops_per_sample: float | None = None
    """Floating-point operations of a sample, forward and backward, for MFU. None: counted in the second
    step, where that changes nothing and the device's peak is known."""
    peak_flops: float | None = None
    """Peak floating-point operations per second of one device. None: looked up for known GPUs."""
    progress: str | bool = "auto"
    """A progress bar on rank 0: True, False, or "auto": on a terminal; plain lines elsewhere."""
    loggers: Sequence[str | Logger] = ()
    """Besides ``metrics.jsonl`` in the run folder: "tensorboard", "mlflow", "wandb", "csv", or a Logger."""
    hyperparams: Mapping[str, Any] = field(default_factory=dict)
    """Recorded with the run and given to every logger."""
    log_model: bool = False
    """Give the trained model to loggers that store models (MLflow, W&B)."""
    plot_every: int = 0
    """Call ``plotting_functions`` every N epochs."""
    plotting_functions: Sequence[Callable[..., Any]] = ()
    """``(model, epoch) -> (name, figure)``; figures go to the run folder and to the loggers."""

    # Checkpoints
    checkpoint_every: int = 0
    """Save every N epochs; 0: only the best and the last."""
    checkpoint_every_steps: int | None = None
    """Save every N steps."""
    checkpoint_every_time: str | None = None
    """Save at this interval of wall time: "30m"."""
    checkpoint_best_only: bool = False
    """Save only when the monitored metric improves."""
    checkpoint_keep: int = 3
    """How many periodic checkpoints to keep; the best and the last are always kept."""
    checkpoint_keep_every: str | None = None
    """Keep one more checkpoint per interval for good: "6h"."""
    checkpoint_async: bool = True
    """Write in the background while training continues; False waits until it is on the disk."""
    checkpoint: bool = True
    """Whether to save checkpoints."""
    resume: str | bool = "auto"
    """Resume: "auto" (or True) from this run's newest checkpoint, if there is one; False: never; or the path
    of a run folder or checkpoint."""
    deadline_margin: str = "30s"
    """Time to exit before the end of the job, in addition to the measured time of a save."""

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
                f"epochs={self.epochs} and max_iter={self.max_iter} mean the same: give only one."
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
    "prefetch": 1, "val_every": 0, "val_every_steps": 1, "max_val_batches": 1, "patience": 1, "print_every": 0,
    "log_every": 1, "plot_every": 0, "checkpoint_every": 0, "checkpoint_every_steps": 1,
    "checkpoint_keep": 1, "lr_base_batch": 1, "val_epsilon": 0, "clip_norm": 0, "clip_value": 0,
    "tokens_per_sample": 1, "flops_per_sample": 0, "peak_flops": 0,
}  # fmt: skip

_REAL = ("val_epsilon", "clip_norm", "clip_value", "flops_per_sample", "peak_flops")


def _not_one_of(name: str, value: str, choices: Sequence[str]) -> str:
    hint = did_you_mean(value, choices)
    return f"{name}='{value}': must be one of {', '.join(choices)}.{hint}"


def _reject_unknown_fields(cls: type[TrainConfig]) -> None:
    """Let the constructor name the field that was probably meant when one is mistyped."""
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


_reject_unknown_fields(TrainConfig)
