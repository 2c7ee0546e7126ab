"""Helpers of the strategy tests: small models in fp64, one training loop, and real gloo ranks."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from allranks.runtime.world import World
from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.strategies import DDP, FSDP, Single, Strategy, StrategyOptions
from allranks.train.strategies.named_state_dicts import join_tensors, split_tensors

CPU = torch.device("cpu")
BATCH, LENGTH, WORDS, WIDTH = 16, 6, 11, 10
PRELOAD = ["torch._dynamo", "torch.distributed.tensor", "allranks.train.strategies"]
KINDS: dict[str, type[Strategy]] = {"single": Single, "ddp": DDP, "fsdp": FSDP}


def a_world(rank: int = 0, size: int = 1) -> World:
    return World(rank, size, rank, size, 0, 1, "127.0.0.1", 1, "here", "plain", "a test")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class TinyGPT(nn.Module):
    """Blocks in a list, the head tied to the embedding, a constant table."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.wte(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Objective(nn.Module):
    """The model and its loss, as the loop calls them; optionally with its own parameter."""

    def __init__(self, model: nn.Module, own: bool = False) -> None:
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(torch.full((1,), 0.5, dtype=torch.float64)) if own else None

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logits = self.model(words)
        if self.weight is not None:
            logits = logits * self.weight
        loss = F.cross_entropy(logits.flatten(0, 1), (words * 3 % WORDS).flatten())
        return loss, {"loss": loss.detach()}


def an_optimizer(kind: str, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    first, rest = [*parameters][:2], [*parameters][2:]
    groups = [{"params": first, "lr": 0.02}, {"params": rest, "weight_decay": 0.1}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.01)


class Training:
    """One model under one strategy, fed the same global batches on any number of ranks."""

    def __init__(
        self,
        strategy: str | Strategy,
        world: World,
        *,
        optimizer: str = "adamw",
        own: bool = False,
        dtype: torch.dtype = torch.float64,
        before: int = 0,
        **options: Any,
    ) -> None:
        torch.manual_seed(7 + world.rank)  # rank 0's weights must win
        self.model = TinyGPT().to(dtype)
        objective = Objective(self.model, own)
        self.optimizer = an_optimizer(optimizer, [*objective.parameters()])
        self.world = world
        self.strategy = strategy if isinstance(strategy, Strategy) else KINDS[strategy]()
        self.call: Any = objective
        if before:
            self.step(0, parts=1, ranks=1)
        self.call = self.strategy.setup(
            self.model,
            [self.optimizer],
            world=world,
            device=CPU,
            options=StrategyOptions(**options),
            objective=objective,
        )

    def gradients(self, number: int, parts: int = 1, ranks: int | None = None) -> None:
        """Forward and backward over this rank's part of a global batch, in ``parts`` micro-batches."""
        generator = torch.Generator().manual_seed(number)
        batch = torch.randint(WORDS, (BATCH, LENGTH), generator=generator)
        mine = batch.chunk(ranks or self.world.size)[0 if ranks else self.world.rank]
        for i, part in enumerate(mine.chunk(parts)):
            if not ranks:
                self.strategy.begin_micro_batch(last=i == parts - 1)
            loss, _ = self.call(part)
            self.strategy.backward(loss / parts)

    def step(self, number: int, parts: int = 1, ranks: int | None = None) -> None:
        self.gradients(number, parts, ranks)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def clipped_step(self, number: int, parts: int = 1) -> float:
        self.gradients(number, parts)
        norm = self.strategy.clip_norm(self.call.parameters(), 0.3)
        self.strategy.step(self.optimizer)
        self.optimizer.zero_grad()
        return float(norm)

    def run(self, steps: Sequence[int], parts: int = 1) -> list[float]:
        return [self.clipped_step(number, parts) for number in steps]

    def saved(self) -> Path:
        """The step folder of a checkpoint that all ranks have written. Collective."""
        tensors: dict[str, Any] = {}
        model, optimizer = (
            self.strategy.model_tensors(),
            self.strategy.optimizer_tensors(self.optimizer),
        )
        state = {
            "model": split_tensors(model, "model", tensors),
            "optimizer": split_tensors(optimizer, "optimizer", tensors, counters=True),
        }
        rank, size = self.world.rank, self.world.size
        folder, token, part = _from_rank_0(self.world, _part)
        saver = CheckpointSaver(CheckpointStore(folder), rank, size, token, asynchronous=False)
        saver.start(CheckpointState(tensors, state=state), part, {"step": 1})
        assert not saver.problem, saver.problem
        if size > 1:
            dist.barrier()
        return Path(folder) / "step-00000001"

    def states(self) -> dict[str, Any]:
        """What a checkpoint holds, whole; names of one tensor are one tensor."""
        reader = CheckpointReader(self.saved())
        read: dict[str, torch.Tensor] = {}

        def tensor(key: str) -> torch.Tensor:
            holder = reader.manifest.tensors[key].get("same_as", key)
            return read.setdefault(holder, reader.tensor(holder))

        found: dict[str, Any] = join_tensors(reader.blob("state"), tensor)
        return found

    def load(self, path: Path) -> None:
        reader = CheckpointReader(path)
        state = reader.blob("state")
        assert not self.strategy.model_mismatch(state["model"], reader)
        assert not self.strategy.optimizer_mismatch(self.optimizer, state["optimizer"])
        self.strategy.load_model(state["model"], reader)
        self.strategy.load_optimizer(self.optimizer, state["optimizer"], reader)


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _part() -> tuple[Path, str, Path]:
    """A new folder of checkpoints, its owner's token, and where to write; it goes with the process."""
    _folders.append(tempfile.TemporaryDirectory())
    store = CheckpointStore(Path(_folders[-1].name))
    token = store.take_over({})
    return store.folder, token, store.stage(1, token)


def _from_rank_0(world: World, make: Callable[[], Any]) -> Any:
    box = [make() if world.is_main else None]
    if world.size > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]


Case = Callable[[World], Any]


def over_ranks(size: int, cases: dict[str, Case], folder: Path) -> dict[str, Any]:
    """Rank 0's result of each case, or the text of its error: one start of processes for all."""
    multiprocessing.set_forkserver_preload(PRELOAD)  # six ranks import torch once
    torch.multiprocessing.start_processes(
        _rank, (size, cases, folder), nprocs=size, start_method="forkserver"
    )
    return torch.load(folder / "results.pt", weights_only=True)


def _rank(rank: int, size: int, cases: dict[str, Case], folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    results: dict[str, Any] = {}
    for name, case in cases.items():
        try:
            results[name] = case(a_world(rank, size))
        except Exception:
            if rank:
                raise  # the others would wait for this one
            results[name] = traceback.format_exc()
        dist.barrier()
    if rank == 0:
        torch.save(results, folder / "results.pt")
    dist.destroy_process_group()


def same(left: Any, right: Any, where: str = "") -> None:
    """Equal to 1e-10, however deep."""
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(
            left, right, rtol=1e-10, atol=1e-10, msg=lambda m: f"{where}: {m}"
        )
    elif isinstance(left, dict):
        assert isinstance(right, dict), f"{where}: {right}"
        assert left.keys() == right.keys(), where
        for key in left:
            same(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            same(one, other, f"{where}/{i}")
    elif isinstance(left, float):
        assert abs(left - right) < 1e-10, f"{where}: {left} {right}"
    else:
        assert left == right, where
