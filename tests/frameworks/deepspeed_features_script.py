"""What else DeepSpeed's users have: an optimizer and a schedule in the file, a loop of their own, callbacks.

python deepspeed_features_script.py NPROCS FOLDER OUT.json deepspeed|single
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed_truth_script import Curve, Net, data
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import allranks
from allranks import TrainConfig
from allranks.train.strategies import DeepSpeed

CONFIG = """{
  // as people write it
  "train_batch_size": "auto",
  "gradient_clipping": 0.05,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "torch_adam": true}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4,
    "warmup_type": "linear", "total_num_steps": "auto"}},
  "zero_optimization": {"stage": 2},
}
"""


def warmup_decay(step: int, steps: int = 21, rise: int = 4) -> float:
    """What WarmupDecayLR does, for torch's LambdaLR: it starts at zero, one step late."""
    step = max(0, step - 1)
    return step / rise if step < rise else max(0.0, (steps - step) / max(1, steps - rise))


def quiet(**fields: Any) -> TrainConfig:
    return TrainConfig(
        seed=11, summary=False, verbose=False, print_every=0, checkpoint=False, log_every=1,
        batch_size_is="global", **fields,
    )  # fmt: skip


def from_the_file(way: str, ranks: int, folder: Path) -> dict[str, Any]:
    """Optimizer, schedule and clipping are in the file, and the Trainer has none."""
    net = Net()
    optimizer = scheduler = None
    strategy: Any = way
    if way == "single":
        trained = [value for value in net.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_decay)
        config = quiet(epochs=3, clip_norm=0.05, nprocs=ranks, strategy=strategy)
    else:
        (folder / "ds_config.json").write_text(CONFIG)
        strategy = DeepSpeed(folder / "ds_config.json")
        config = quiet(epochs=3, nprocs=ranks, strategy=strategy, root_folder=str(folder / "runs"))
    trainer = Curve(net, optimizer, config, loss_fn="mse", scheduler=scheduler)
    trainer.losses, trainer.norms = [], []
    _, given = trainer.fit(DataLoader(data(), 16, shuffle=True))
    assert isinstance(given, torch.optim.AdamW)
    settings = trainer.folder / "deepspeed.json"
    used = json.loads(settings.read_text()) if settings.exists() else {}
    return {"losses": trainer.losses, "norms": trainer.norms, "used": used}


def own_loop(way: str, ranks: int, folder: Path) -> dict[str, Any]:
    """`prepare`: the user's loop, with ZeRO 3 and accumulation."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    strategy: Any = DeepSpeed(stage=3) if way == "deepspeed" else way
    prepared = allranks.prepare(
        net, optimizer, DataLoader(data(), 8, shuffle=True), nprocs=ranks, strategy=strategy, seed=11,
        batch_size_is="global", accumulate=2, clip_norm=0.05,
    )  # fmt: skip
    model, _, loader = prepared
    losses = []
    for _ in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            prepared.backward(loss)
            prepared.step()
            losses.append(prepared.mean(loss.detach() * loader.weight))
        with torch.no_grad():
            model.eval()
            losses.append(float(model(data().tensors[0]).sum()))
            model.train()
    return {"losses": losses}


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Does not tell its length, so a short last window is put right after its gradients are summed."""

    def __iter__(self) -> Any:
        return iter([*zip(*data().tensors, strict=True)][:88])


def short_windows(way: str, ranks: int, folder: Path) -> dict[str, Any]:
    """11 batches of 8 in windows of 4: the last has 3."""
    losses = []
    for stage in (0, 1, 3) if way == "deepspeed" else (0,):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        strategy: Any = DeepSpeed(stage=stage) if way == "deepspeed" else way
        config = quiet(epochs=2, accumulate=4, nprocs=ranks, strategy=strategy, shard_iterable=True)
        trainer = Curve(net, optimizer, config, loss_fn="mse")
        trainer.losses, trainer.norms = [], []
        trainer.fit(DataLoader(Stream(), 8))
        losses.append(trainer.losses)
    return {"losses": losses}


def main() -> None:
    ranks, folder, out, way = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    made = {
        each.__name__: each(way, ranks, folder) for each in (from_the_file, own_loop, short_windows)
    }
    if allranks.world().is_main:
        out.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
