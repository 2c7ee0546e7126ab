"""The Trainer with DeepSpeed, whatever started it: ``loss <step> <value>`` from rank 0.

python deepspeed_trainer_script.py [--strategy single] [--nprocs 2] [--config ds_config.json]
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import allranks
from allranks import TrainConfig, Trainer
from allranks.train.strategies import DeepSpeed


class Printed(Trainer):
    def on_log(self, trainer: Trainer, values: dict[str, float]) -> None:
        if "lr" in values:
            self.say(f"loss {trainer.step} {values['train_loss']:.7f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="deepspeed")
    parser.add_argument("--nprocs", type=int)
    parser.add_argument("--config")
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--local_rank", "--local-rank", type=int)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(3)
    x = torch.randn(96, 4)
    y = torch.stack([x.sum(1), x[:, 0] - x[:, 1]], 1)
    model = nn.Sequential(
        nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    strategy: Any = args.strategy
    if strategy == "deepspeed":
        strategy = DeepSpeed(args.config) if args.config else DeepSpeed(stage=args.stage)
    config = TrainConfig(
        epochs=3, seed=1, nprocs=args.nprocs, strategy=strategy, batch_size_is="global", log_every=1,
        print_every=0, summary=False, progress=False, compute_setup="cpu",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    trainer = Printed(model, optimizer, config, loss_fn="mse")
    trainer.fit(DataLoader(TensorDataset(x, y), 32, shuffle=True))
    if allranks.world().is_main:
        print(
            f"ranks {allranks.world().size} by {trainer.context.engine.strategy.describe()}",
            flush=True,
        )


if __name__ == "__main__":
    main()
