"""What the training benchmark trains: models, data on the host, and how much work a step is.

Every workload gives batches ``(inputs, target)``; the data costs next to nothing to make, so that what
is measured is the loop, the copy to the device and the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Block(nn.Module):
    """One layer of a transformer, attention through PyTorch's fused kernels."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """GPT-2 with the head tied to the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.word.weight
        nn.init.normal_(self.word.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Vit(nn.Module):
    """A Vision Transformer with a class token."""

    def __init__(self, side: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads, causal=False) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.place
        return self.head(self.norm(self.blocks(x)[:, 0]))


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of one long row of random tokens."""

    def __init__(self, count: int, vocabulary: int, length: int) -> None:
        self.count, self.length = count, length
        self.row = torch.randint(vocabulary, (length * 512 + 1,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index % 512 * self.length
        piece = self.row[start : start + self.length + 1]
        return piece[:-1], piece[1:]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """A pool of random images, ready as floats; the DataLoader's workers only put them together."""

    def __init__(self, count: int, side: int) -> None:
        self.count = count
        self.pool = torch.randn(64, 3, side, side)
        self.classes = torch.randint(1000, (64,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pool[index % 64], self.classes[index % 64]


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """The tensors of a TensorDataset behind a class of one's own: no library can look inside."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Batches(Rows):
    """The same, read a batch at a time: data that costs almost nothing, so the loop stands alone."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(indices)
        return self.inputs[chosen], self.targets[chosen]


def as_is(batch: Any) -> Any:
    """The collate function of ``Batches``: its batches are batches already."""
    return batch


@dataclass(frozen=True)
class Workload:
    """A model and its data; everything is made anew for each run."""

    name: str
    model: Callable[[], nn.Module]
    dataset: Callable[[int], Dataset[Any]]
    """Given how many samples."""
    batch: int
    workers: int
    unit: str
    units: int
    """How many of the unit one sample is: 1024 tokens, 1 image."""
    extra_flops: float = 0.0
    """Floating-point operations of a sample beside 6 per parameter and position: attention."""
    positions: int = 1
    collate: Callable[[Any], Any] | None = None

    def loader(self, steps: int, pin: bool, collate: Callable[[Any], Any] | None = None) -> Any:
        """A DataLoader with one epoch of ``steps`` batches, and a few to spare for prefetching."""
        made = self.collate or torch.utils.data.default_collate
        return DataLoader(
            self.dataset((steps + 8) * self.batch),
            batch_size=self.batch,
            shuffle=True,
            num_workers=self.workers,
            pin_memory=pin,
            collate_fn=_InTurn(made, collate) if collate else self.collate,
        )

    def flops(self, model: nn.Module) -> float:
        """Of one step, forward and backward, counted as 6 per weight and position plus attention."""
        skipped = ("place", "token")
        weights = sum(
            weight.numel()
            for name, weight in model.named_parameters()
            if name.split(".")[0] not in skipped
        )
        return self.batch * (6.0 * weights * self.positions + self.extra_flops)


class _InTurn:
    """One collate function after the other; a class, since workers may have to pickle it."""

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self.first, self.second = first, second

    def __call__(self, items: Any) -> Any:
        return self.second(self.first(items))


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Over classes, or over the words of every position."""
    return functional.cross_entropy(output.view(-1, output.shape[-1]), target.reshape(-1))


def mlp(dataset: str = "tensors") -> Workload:
    """32-64-10 with batch 64: hardly any work, so the loop around it is what is seen."""

    def data(count: int) -> Dataset[Any]:
        kind = {"tensors": TensorDataset, "class": Rows, "batches": Batches}[dataset]
        return kind(torch.randn(count, 32), torch.randint(10, (count,)))

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    collate = as_is if dataset == "batches" else None
    return Workload("mlp", model, data, 64, 0, "samples", 1, collate=collate)


def gpt(tiny: bool) -> Workload:
    """GPT-2 124M, 16 x 1024 tokens."""
    words, length, width, depth, batch, workers = (
        (257, 32, 32, 2, 4, 0) if tiny else (50257, 1024, 768, 12, 16, 4)
    )
    return Workload(
        "gpt",
        lambda: Gpt(words, length, width, depth, width // 16 if tiny else width // 64),
        lambda count: Tokens(count, words, length),
        batch, workers, "tokens", length, 12.0 * depth * width * length * length, length,
    )  # fmt: skip


def vit(tiny: bool) -> Workload:
    """ViT-B/16 with 128 images of 224 x 224."""
    side, patch, width, depth, batch, workers = (
        (32, 16, 32, 2, 4, 0) if tiny else (224, 16, 768, 12, 128, 8)
    )
    length = (side // patch) ** 2 + 1
    return Workload(
        "vit",
        lambda: Vit(side, patch, width, depth, width // 16 if tiny else width // 64),
        lambda count: Images(count, side),
        batch, workers, "images", 1, 12.0 * depth * width * length * length, length,
    )  # fmt: skip


def workload(name: str, dataset: str, tiny: bool) -> Workload:
    """By the name given on the command line."""
    if name == "mlp":
        return mlp(dataset)
    return gpt(tiny) if name == "gpt" else vit(tiny)
