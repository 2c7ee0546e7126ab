"""The loops that are measured: written by hand, and ours. Those of others: train_rivals.py.

Each is ``run(setting)``: make the model, the optimizer and the data from the setting, train
``setting.steps`` steps. The clock hangs on the optimizer, so it costs the same everywhere and no
library's own hooks are needed for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train_models import Workload, cross_entropy


class Clock:
    """Notes the time after the first and after the last measured step, when the device is done."""

    def __init__(self, first: int, last: int, cuda: bool) -> None:
        self.first, self.last, self.cuda = first, last, cuda
        self.count = 0
        self.times: list[float] = []
        self.busy: list[float] = []
        self.began = time.perf_counter()

    def __call__(self, *_: Any) -> None:
        self.count += 1
        if self.count == self.first or self.count == self.last:
            if self.cuda:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
            self.busy.append(time.process_time())

    def result(self) -> dict[str, float]:
        """Seconds per step, of them busy on the CPU, and from the start to the last step."""
        if len(self.times) != 2:
            raise RuntimeError(f"{self.count} optimizer steps were seen, {self.last} were expected")
        steps = self.last - self.first
        return {
            "step": (self.times[1] - self.times[0]) / steps,
            "cpu": (self.busy[1] - self.busy[0]) / steps,
            "total": self.times[1] - self.began,
        }


@dataclass
class Setting:
    """What every loop is given."""

    work: Workload
    device: str
    clock: Clock
    folder: Path
    tuned: bool = False
    """Fused optimizer and torch.compile."""
    flops: float = 0.0

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def steps(self) -> int:
        return self.clock.last

    @property
    def precision(self) -> str:
        return "bf16" if self.cuda else "fp32"

    def model(self) -> nn.Module:
        """On the host; where it goes is the loop's business."""
        torch.manual_seed(0)
        made = self.work.model()
        self.flops = self.work.flops(made)
        return made

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW with the clock; fused for all on the CPU, where only the loop is of interest."""
        fused = True if self.tuned or not self.cuda else None
        made = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        made.register_step_post_hook(self.clock)
        return made

    def compiled(self, model: Any) -> Any:
        return torch.compile(model) if self.tuned else model

    def loader(self, collate: Callable[[Any], Any] | None = None) -> Any:
        return self.work.loader(self.steps, pin=self.cuda, collate=collate)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.cuda else nullcontext()


class WithLoss(nn.Module):
    """Model and loss in one, so that both are compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.model(inputs), target)


def raw(setting: Setting) -> None:
    """What a step costs with nothing around it."""
    model = setting.model().to(setting.device)
    optimizer = setting.optimizer(model)
    for inputs, target in islice(setting.loader(), setting.steps):
        loss = cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def naive(setting: Setting) -> None:
    """As in a tutorial: blocking copies, the loss read in every step."""
    model = setting.model().to(setting.device)
    optimizer = setting.optimizer(model)
    total = 0.0
    for inputs, target in islice(setting.loader(), setting.steps):
        inputs, target = inputs.to(setting.device), target.to(setting.device)
        optimizer.zero_grad()
        with setting.autocast():
            loss = cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()
        total += loss.item()


def by_hand(setting: Setting) -> None:
    """As somebody writes it who wants every last bit: compiled, fused, prefetched, read late."""
    torch.set_float32_matmul_precision("high")
    model = setting.model().to(setting.device)
    optimizer = setting.optimizer(model)
    whole = setting.compiled(WithLoss(model))
    losses: list[Tensor] = []
    for inputs, target in islice(prefetched(setting.loader(), setting.cuda), setting.steps):
        with setting.autocast():
            loss = whole(inputs, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    torch.stack(losses).mean().item()


def prefetched(loader: Any, cuda: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The next batch is copied on a stream of its own while the present one is used."""
    if not cuda:
        yield from loader
        return
    side = torch.cuda.Stream()
    batches = iter(loader)
    ahead = _copied(batches, side)
    while ahead is not None:
        torch.cuda.current_stream().wait_stream(side)
        batch = ahead
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        ahead = _copied(batches, side)
        yield batch


def _copied(batches: Iterator[Any], side: Any) -> Any:
    batch = next(batches, None)
    if batch is None:
        return None
    with torch.cuda.stream(side):
        return tuple(part.to("cuda", non_blocking=True) for part in batch)


def allranks_trainer(setting: Setting) -> None:
    """Our Trainer with its defaults; tuned means that it need not find out that compiling pays."""
    from allranks import TrainConfig, Trainer

    model = setting.model()
    config = TrainConfig(
        max_steps=setting.steps,
        precision=setting.precision,
        compute_setup="gpu" if setting.cuda else "cpu",
        compile=True if setting.tuned else "auto",
        root_folder=str(setting.folder),
    )
    trainer = Trainer(model, setting.optimizer(model), config, loss_fn=cross_entropy)
    trainer.fit(setting.loader())


def allranks_prepare(setting: Setting) -> None:
    """One's own loop with our ``prepare``."""
    from allranks import prepare

    model = setting.model()
    prepared = prepare(
        model, setting.optimizer(model), setting.loader(), precision=setting.precision
    )
    model, _, loader = prepared
    for inputs, target in islice(loader, setting.steps):
        prepared.backward(cross_entropy(model(inputs), target))
        prepared.step()
