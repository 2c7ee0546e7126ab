"""Trains, saves and goes on from what was saved, by one strategy after the other.

python deepspeed_resume_script.py NPROCS FOLDER OUT.json "STRATEGY EPOCHS NAME [FROM]" ...

NAME in FOLDER is what was saved; FROM is the name of one to go on from.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed_truth_script import Net, data, optimizer_of, strategy_of
from torch.utils.data import DataLoader

import allranks
from allranks import TrainConfig, Trainer


def part(words: str, ranks: int, folder: Path) -> dict[str, Any]:
    strategy, epochs, name, *source = words.split()
    precision = "bf16" if strategy.endswith("-bf16") else "fp32"
    resume = str(folder / source[0]) if source else False
    config = TrainConfig(
        epochs=int(epochs), seed=11, summary=False, verbose=False, print_every=0, nprocs=ranks,
        batch_size_is="global", strategy=strategy_of(strategy.partition("-")[0], ""), precision=precision,
        resume=resume, root_folder=str(folder / "runs"), name=name, warmup_steps=5,
    )  # fmt: skip
    net = Net()
    optimizer = optimizer_of("", net)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    trainer = Trainer(net, optimizer, config, loss_fn="mse", scheduler=scheduler)
    trainer.fit(DataLoader(data(), 16, shuffle=True))
    saved = trainer.save_checkpoint("end")
    if saved is not None:
        shutil.copytree(saved, folder / name)
        settings = trainer.folder / "deepspeed.json"
        assert settings.exists() == strategy.startswith("zero")
    if dist.is_initialized():
        dist.barrier()
    return {"name": name, "test": trainer.test(DataLoader(data(), 7))["test_loss"]}


def main() -> None:
    ranks, folder, out = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    parts = [part(words, ranks, folder) for words in sys.argv[4:]]
    if allranks.world().is_main:
        out.write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
