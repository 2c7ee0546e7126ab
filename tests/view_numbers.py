"""The numbers of a made-up run: how long its steps take, how its loss falls, what its nodes do."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

GIB = 2**30
PATTERNS = 100
"""Different windows: the text of each is made once and used again, so that big runs are quick to write."""
SAVE_EVERY = 10
"""Windows from one checkpoint to the next."""


@dataclass(frozen=True)
class Window:
    """One pattern of a window: the lists of all ranks as text, and their means."""

    lists: str
    means: dict[str, float]


@dataclass(frozen=True)
class Shape:
    ranks: int
    gpus_per_node: int
    steps: int
    """Per window."""
    gpus: bool
    slow_rank: int | None
    finished: bool
    total_windows: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.gpus_per_node)

    @property
    def total_steps(self) -> int:
        """An unfinished run is at about two thirds of its way."""
        windows = self.total_windows
        return self.steps * (windows if self.finished else windows + windows // 2 + 1)

    @cached_property
    def patterns(self) -> list[Window]:
        chance = random.Random(42)
        return [_window(self, place, chance) for place in range(PATTERNS)]

    def ranks_on(self, node: int) -> list[int]:
        first = node * self.gpus_per_node
        return list(range(first, min(first + self.gpus_per_node, self.ranks)))

    def pattern(self, window: int) -> Window:
        return self.patterns[window % PATTERNS]

    def window_seconds(self, window: int) -> float:
        return self.pattern(window).means["step_seconds"] * self.steps


@dataclass(frozen=True)
class Life:
    """One attempt: its windows from ``first`` to ``windows``, of which those up to ``kept`` count."""

    number: int
    first: int
    kept: int
    windows: int
    begin: float
    """When its first step began."""
    outcome: str = ""

    def seconds(self, shape: Shape) -> float:
        return sum(shape.window_seconds(window) for window in range(self.first, self.windows))


def lives_of(shape: Shape, windows: int, attempts: int, end: float) -> Iterator[Life]:
    """Each but the last goes on for some windows after its last checkpoint, which are lost."""
    cuts = [windows * number // attempts for number in range(attempts + 1)]
    lost = min(3, windows)
    found: list[Life] = []
    for number in range(attempts, 0, -1):
        last = number == attempts
        done = cuts[number] + (0 if last else lost)
        life = Life(number, cuts[number - 1], cuts[number], done, 0.0)
        begin = end - life.seconds(shape)
        found.append(replace(life, begin=begin))
        end = begin - 95.0  # in the queue, and starting
    return reversed(found)


def _window(shape: Shape, place: int, chance: random.Random) -> Window:
    saving = 0.6 / shape.steps if place % SAVE_EVERY == SAVE_EVERY - 1 else 0.0
    data = [0.012 * (1 + abs(chance.gauss(0, 0.3))) for _ in range(shape.ranks)]
    compute = [0.180 * (1 + chance.gauss(0, 0.012)) for _ in range(shape.ranks)]
    if shape.slow_rank is not None and shape.slow_rank < shape.ranks:
        compute[shape.slow_rank] *= 1.45
    network = 0.021 * (1 + abs(chance.gauss(0, 0.1))) if shape.ranks > 1 else 0.0
    own = [d + c for d, c in zip(data, compute, strict=True)]
    step = max(own) + network + 0.004 + saving
    waits = [max(round(step - saving - 0.004 - each, 6), 0.0) for each in own]
    lists = {
        "step_seconds": [step] * shape.ranks,
        "data_seconds": data,
        "compute_seconds": compute,
        "communication_seconds": waits,
    }
    text = ", ".join(
        f'"{key}": [{", ".join(f"{each:.4g}" for each in values)}]' for key, values in lists.items()
    )
    return Window(text, _means(lists, step, saving, shape.ranks))


def _means(
    lists: dict[str, list[float]], step: float, saving: float, ranks: int
) -> dict[str, float]:
    compute = sum(lists["compute_seconds"]) / ranks
    parts = {
        "data_seconds": sum(lists["data_seconds"]) / ranks,
        "forward_seconds": compute * 0.32,
        "backward_seconds": compute * 0.61,
        "communication_seconds": sum(lists["communication_seconds"]) / ranks,
        "optimizer_seconds": compute * 0.07,
        "checkpoint_seconds": saving,
    }
    parts = {key: round(value, 6) for key, value in parts.items()}
    step = round(step, 6)
    return {"step_seconds": step, **parts, "other_seconds": round(step - sum(parts.values()), 6)}


def train_line(shape: Shape, head: str, step: int, pattern: Window, chance: random.Random) -> str:
    seconds = pattern.means["step_seconds"]
    tokens = shape.ranks * 8 * 1024 / seconds
    flops = tokens * 6 * 2.7e9
    values = {
        "train_loss": loss_at(step) * (1 + chance.gauss(0, 0.02)),
        "lr": 3e-4 * min(step / 100, 1.0) * max(1 - step / (4 * shape.total_steps), 0.1),
        "samples_per_second": shape.ranks * 8 / seconds,
        "grad_norm": 0.4 + abs(chance.gauss(0, 0.1)),
        **pattern.means,
        "tokens_per_second": tokens,
        "flops_per_second": flops,
    }
    if shape.gpus:
        values["mfu"] = flops / (shape.ranks * 989e12)
    text = ", ".join(f'"{name}": {value:.6g}' for name, value in values.items())
    return f'{head}, "kind": "train", {text}}}\n'


def epoch_lines(head: str, step: int, chance: random.Random) -> list[str]:
    loss = loss_at(step)
    held_out = loss * (1.05 + chance.gauss(0, 0.005))
    return [
        f'{head}, "kind": "epoch", "train_loss": {loss:.6g}, "epoch_seconds": 22.5}}\n',
        f'{head}, "kind": "val", "val_loss": {held_out:.6g}, "val_accuracy": {1 - held_out / 12:.4g}}}\n',
    ]


def loss_at(step: int) -> float:
    return 1.8 + 8.5 / (1 + step / 60) ** 0.6


def sample_times(length: float) -> Iterator[float]:
    at = 1.0
    while at < length:
        yield at
        at += 5.0 if at < 600 else 15.0


def sample_texts(shape: Shape, node: int) -> list[str]:
    """Forty samples as text without their time; a slow rank's GPU is the busiest, the others wait."""
    chance = random.Random(1000 + node)
    ranks = shape.ranks_on(node)
    texts = []
    for _ in range(40):
        busy = len(ranks) * 3.1 * (1 + chance.gauss(0, 0.05))
        sample = {
            "seconds": 5.0,
            "cpu": round(busy, 2),
            "cpu_node": round(busy + 0.4, 2),
            "memory": int(len(ranks) * 9.5 * GIB * (1 + chance.gauss(0, 0.01))),
            "memory_node": int((len(ranks) * 9.5 + 20) * GIB),
            "net_in": round(2.1e9 * (1 + chance.gauss(0, 0.1))) if shape.nodes > 1 else 2048,
            "net_out": round(2.1e9 * (1 + chance.gauss(0, 0.1))) if shape.nodes > 1 else 1024,
            "disk_read": round(3.2e8 * (1 + chance.gauss(0, 0.2))),
            "disk_write": round(abs(chance.gauss(0, 4e6))),
            "gpus": [_gpu(shape, rank, place, chance) for place, rank in enumerate(ranks)]
            if shape.gpus
            else [],
        }
        texts.append(json.dumps(sample)[1:] + "\n")
    return texts


def _gpu(shape: Shape, rank: int, place: int, chance: random.Random) -> dict[str, Any]:
    waiting = shape.slow_rank is not None and shape.slow_rank < shape.ranks
    use = 0.64 if waiting and rank != shape.slow_rank else 0.95
    use = min(max(use + chance.gauss(0, 0.02), 0.0), 1.0)
    return {
        "gpu": place,
        "use": round(use, 3),
        "memory": int(118e9 + rank % 8 * 1e8),
        "power": round(180 + 450 * use, 1),
        "temperature": round(38 + 28 * use),
    }
