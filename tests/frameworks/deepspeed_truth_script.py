"""Trains the same small model by ZeRO 0 to 3 and plainly, and writes each loss curve and the weights.

python deepspeed_truth_script.py NPROCS OUT.json [NAME ...]
"""

import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.strategies import DeepSpeed
from allranks.train.strategies.named_state_dicts import join_tensors

SAMPLES, GLOBAL_BATCH = 101, 16  # the last global batch has 5 samples, not even for 2 or 4 ranks
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_norm": 0.05},
    "accumulated": {"accumulate": 4},  # 7 batches of 16 are 26 of 4: the last window is short
    "sgd": {"clip_norm": 0.05, "accumulate": 2},
    "ema": {"ema": 0.9},
    "bf16": {"precision": "bf16"},
    "offloaded": {},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.wide = nn.Linear(12, 24)
        self.back = nn.Linear(24, 12)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return x + self.back(torch.tanh(self.wide(self.norm(x))))


class Net(nn.Module):
    """Tied weights, a frozen layer, and a parameter of its own with an odd number of elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(3, 12)
        self.blocks = nn.Sequential(Block(), Block())
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.again = nn.Linear(12, 24)
        self.again.weight = self.blocks[0].wide.weight
        self.last = nn.Linear(24, 2)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.blocks(self.first(x)))
        return self.last(torch.tanh(self.again(x))) + self.shift


def data() -> TensorDataset:
    torch.manual_seed(6)
    x = torch.randn(SAMPLES, 3)
    return TensorDataset(x, torch.stack([x.sum(1).sin(), x.prod(1)], 1))


def strategy_of(name: str, kind: str) -> Any:
    if not name.startswith("zero"):
        return name
    offload = {"offload_optimizer": "cpu"} if kind == "offloaded" else {}
    return DeepSpeed(stage=int(name[4]), **offload)


def optimizer_of(kind: str, net: nn.Module) -> torch.optim.Optimizer:
    decayed = [value for value in net.parameters() if value.dim() > 1]
    others = [value for value in net.parameters() if value.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.0)
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)


class Curve(Trainer):
    losses: list[float]
    norms: list[float]

    def on_log(self, trainer: Trainer, values: dict[str, float]) -> None:
        if "lr" in values:
            self.losses.append(values["train_loss"])
            self.norms.append(values.get("grad_norm", 0.0))


def saved_optimizer(trainer: Trainer) -> dict[str, Any]:
    """What a checkpoint holds of the optimizer, on rank 0."""
    path = trainer.save_checkpoint("end")
    if path is None:
        return {}
    reader = CheckpointReader(path)
    state: dict[str, Any] = join_tensors(reader.blob("state")["optimizer"]["0"], reader.tensor)
    return state


def curve(name: str, kind: str, ranks: int) -> dict[str, Any]:
    net, options = Net(), dict(KINDS[kind])
    config = TrainConfig(
        epochs=3, seed=11, log_every=1, summary=False, verbose=False, print_every=0, checkpoint=False,
        nprocs=ranks, batch_size_is="global", strategy=strategy_of(name, kind), **options,
    )  # fmt: skip
    optimizer = optimizer_of(kind, net)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    trainer = Curve(net, optimizer, config, loss_fn="mse", scheduler=scheduler)
    trainer.losses, trainer.norms = [], []
    loader = DataLoader(data(), GLOBAL_BATCH // config.accumulate, shuffle=True)
    trainer.fit(loader, DataLoader(data(), 9))
    state = trainer.model_state()
    inner = saved_optimizer(trainer)
    test = trainer.test(DataLoader(data(), 7))
    outputs = trainer.predict(DataLoader(data(), 7))
    return {
        "name": f"{name} {kind}",
        "losses": trainer.losses,
        "norms": trainer.norms,
        "validated": trainer.metrics["val_loss"],
        "weights": {key: value.flatten().tolist() for key, value in state.items()},
        "optimizer": {
            f"{owner} {key}": torch.as_tensor(value).flatten().tolist()
            for owner, values in inner.get("state", {}).items()
            for key, value in values.items()
        },
        "test": test["test_loss"],
        "predict": outputs.flatten().tolist(),
    }


def main() -> None:
    ranks, out, wanted = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    torch.set_num_threads(1)
    curves = [curve(*name.split(), ranks=ranks) for name in wanted]
    if curves[0]["weights"]:  # rank 0
        with open(out, "w") as file:
            json.dump(curves, file)


if __name__ == "__main__":
    main()
