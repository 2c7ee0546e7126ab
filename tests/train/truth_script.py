"""Trains the same small model in several ways and writes each loss curve and the weights.

python truth_script.py NPROCS OUT.json
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer

SAMPLES, GLOBAL_BATCH = 101, 16  # the last global batch has 5 samples, not even for 2 or 4 ranks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.wide = nn.Linear(12, 24)
        self.back = nn.Linear(24, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.back(torch.tanh(self.wide(self.norm(x))))


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 12), Block(), Block(), nn.Linear(12, 2))


def data() -> TensorDataset:
    torch.manual_seed(6)
    x = torch.randn(SAMPLES, 3)
    return TensorDataset(x, torch.stack([x.sum(1).sin(), x.prod(1)], 1))


def curve(name: str, ranks: int, **options: object) -> dict[str, object]:
    losses: list[float] = []

    class Curve(Trainer):
        def on_log(self, trainer: Trainer, values: dict[str, float]) -> None:
            if "lr" in values:
                losses.append(values["train_loss"])

    net = model()
    dtype = options.pop("dtype", torch.float64)
    config = TrainConfig(
        epochs=3, seed=11, dtype=dtype, log_every=1, summary=False, verbose=False, print_every=0,
        checkpoint=False, nprocs=ranks, batch_size_is="global", **options,  # type: ignore[arg-type]
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(data(), GLOBAL_BATCH // config.accumulate, shuffle=True)
    trainer = Curve(net, optimizer, config, loss_fn="mse")
    trainer.fit(loader, DataLoader(data(), 9))
    state = trainer.model_state()
    test = trainer.test(DataLoader(data(), 7))
    outputs = trainer.predict(DataLoader(data(), 7))
    return {
        "name": name,
        "losses": losses,
        "weights": {key: value.flatten().tolist() for key, value in state.items()},
        "test": test["test_loss"],
        "predict": outputs.flatten().tolist(),
    }


def main() -> None:
    ranks, out = int(sys.argv[1]), sys.argv[2]
    strategies = ["single", "ddp", "fsdp"] if ranks == 1 else ["ddp", "fsdp"]
    curves = []
    for strategy in strategies:
        curves.append(curve(strategy, ranks, strategy=strategy))
        curves.append(curve(f"{strategy} accumulate", ranks, strategy=strategy, accumulate=2))
        if ranks == 4:  # many processes on few cores are slow, and 2 ranks tell as much
            continue
        curves.append(curve(f"{strategy} clipped", ranks, strategy=strategy, clip_norm=0.5))
        curves.append(curve(f"{strategy} ema", ranks, strategy=strategy, ema=0.9))
        curves.append(curve(f"{strategy} fp32", ranks, strategy=strategy, dtype=torch.float32))
    if curves[0]["weights"]:  # rank 0
        with open(out, "w") as file:
            json.dump(curves, file)


if __name__ == "__main__":
    main()
