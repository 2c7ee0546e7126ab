"""Trains one small model in several ways and writes each loss curve and the weights.

python horovod_truth_script.py NPROCS OUT.json STRATEGY [WAY …]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import allranks
from allranks import TrainConfig, Trainer

torch.set_num_threads(1)
SAMPLES, GLOBAL_BATCH = 101, 16  # the last global batch has 5 samples, not even for 2 or 4 ranks
RANKS, OUT, STRATEGY = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class Net(nn.Module):
    """With a part that not every batch uses, and one that no loss reaches."""

    def __init__(self, sparse: bool = False, partly: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(7, 12, sparse=sparse)
        self.enter = nn.Linear(3, 12)
        self.back = nn.Linear(12, 2)
        self.idle = nn.Linear(12, 2) if partly else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = (x[:, 0].abs() * 3).long().clamp(max=6)
        return self.back(torch.tanh(self.enter(x)) + self.table(row))


def data() -> TensorDataset:
    torch.manual_seed(6)
    x = torch.randn(SAMPLES, 3)
    return TensorDataset(x, torch.stack([x.sum(1).sin(), x.prod(1)], 1))


def loader(accumulate: int = 1) -> DataLoader[Any]:
    return DataLoader(data(), GLOBAL_BATCH // accumulate, shuffle=True)


def config(**options: Any) -> TrainConfig:
    fields = {
        "epochs": 2, "seed": 11, "dtype": torch.float64, "log_every": 1, "summary": False,
        "verbose": False, "print_every": 0, "progress": False, "checkpoint": False, "nprocs": RANKS,
        "batch_size_is": "global", "strategy": STRATEGY, "root_folder": str(OUT.parent / "runs"),
    }  # fmt: skip
    return TrainConfig(**{**fields, **options})  # type: ignore[arg-type]


class Curve(Trainer):
    losses: list[float]

    def on_log(self, trainer: Trainer, values: dict[str, float]) -> None:
        if any(name.startswith("lr") for name in values):
            self.losses.append(values["train_loss"])


def trained(
    net: nn.Module,
    optimizer: Any,
    settings: TrainConfig,
    kind: Any = None,
    **extra: Any,
) -> dict[str, Any]:
    trainer = (kind or Curve)(net, optimizer, settings, **{"loss_fn": "mse", **extra})
    trainer.losses = []
    trainer.fit(loader(settings.accumulate), DataLoader(data(), 9))
    return result(trainer.losses, trainer.model_state())


def result(losses: list[float], state: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value.flatten().tolist() for name, value in state.items()}
    return {"losses": losses, "weights": flat}


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def plain(**options: Any) -> dict[str, Any]:
    net = Net()
    return trained(net, adam(net), config(**options))


def horovod(**options: Any) -> Any:
    """The strategy with options of its own; for one process it is the plain one."""
    if STRATEGY != "horovod":
        return STRATEGY
    from allranks.train.strategies import Horovod

    return Horovod(**options)


def sparse() -> dict[str, Any]:
    net = Net(sparse=True)
    return trained(net, torch.optim.SGD(net.parameters(), lr=0.05), config(fused=False))


def partly() -> dict[str, Any]:
    """Momentum and decay must leave alone what no rank's loss has reached."""
    net = Net(partly=True)
    return trained(net, adam(net), config(strategy=horovod(find_unused_parameters=True)))


def two() -> dict[str, Any]:
    net = Net()
    heads = [net.back.parameters(), [*net.enter.parameters(), *net.table.parameters()]]
    optimizers = [torch.optim.SGD([*heads[0]], lr=0.05), torch.optim.AdamW(heads[1], lr=0.01)]
    return trained(net, optimizers, config(clip_norm=0.5))


def manual() -> dict[str, Any]:
    net = Net()
    optimizers = {
        "back": torch.optim.SGD(net.back.parameters(), lr=0.05),
        "rest": torch.optim.SGD([*net.enter.parameters(), *net.table.parameters()], lr=0.05),
    }

    def training_step(model: nn.Module, batch: Any, step: Any) -> Any:
        for name in optimizers:
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            step.backward(loss)
            step.update(name)
            for each in optimizers.values():
                each.zero_grad()
        return loss

    class Manual(Curve):
        pass

    Manual.training_step = staticmethod(training_step)  # type: ignore[assignment]
    return trained(net, optimizers, config(val_every=0), kind=Manual, loss_fn=None)


def custom() -> dict[str, Any]:
    """The user's own step reads averaged gradients as soon as backward has returned."""
    net = Net()

    def optimize_step(model: nn.Module, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    settings = config(max_steps=6)  # full batches: such a step knows no weights
    return trained(net, adam(net), settings, optimize_step=optimize_step)


def closure() -> dict[str, Any]:
    net = Net()
    return trained(net, torch.optim.LBFGS(net.parameters(), lr=0.3, max_iter=3), config())


def own_loop() -> dict[str, Any]:
    net = Net()
    prepared = allranks.prepare(
        net, adam(net), loader(2), nprocs=RANKS, strategy=STRATEGY, accumulate=2, clip_norm=0.5,
        seed=11, batch_size_is="global", dtype=torch.float64,
    )  # fmt: skip
    model, _, batches = prepared
    losses = []
    for _ in range(2):
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x), y)
            prepared.backward(loss)
            prepared.step()
            losses.append(prepared.mean(loss.item() * batches.weight))
    return result(losses, prepared.state_dict())


def resumed(first: str, then: str) -> dict[str, Any]:
    """Cut in the middle of the second epoch, and taken up by another strategy."""
    many = STRATEGY != "single"
    folder = OUT.parent / f"cut-{RANKS}-{first}-{then}"
    for strategy, steps, resume in ((first, 9, False), (then, None, True)):
        net = Net()
        settings = config(
            strategy=strategy if many else "single", max_steps=steps, resume=resume and str(folder),
            checkpoint=not resume, name=folder.name, accumulate=1, clip_norm=0.5,
        )  # fmt: skip
        trainer = Curve(net, adam(net), settings, loss_fn="mse")
        trainer.losses = []
        trainer.fit(loader(), DataLoader(data(), 9))
        if not resume and allranks.world().is_main:
            folder.symlink_to(trainer.folder)
        state = trainer.model_state()
    return result(trainer.losses, state)


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": plain,
    "accumulate": lambda: plain(accumulate=2),
    "accumulate3": lambda: plain(accumulate=4),
    "clipped": lambda: plain(clip_norm=0.5),
    "fp32": lambda: plain(dtype=torch.float32),
    "ema": lambda: plain(ema=0.9, warmup_steps=3),
    "predivide": lambda: plain(strategy=horovod(gradient_predivide_factor=2.0)),
    "compressed": lambda: plain(dtype=torch.float32, strategy=horovod(compression="fp16")),
    "adasum": lambda: plain(dtype=torch.float32, strategy=horovod(op="adasum")),
    "sparse": sparse,
    "partly": partly,
    "two": two,
    "manual": manual,
    "custom": custom,
    "closure": closure,
    "own_loop": own_loop,
    "to_ddp": lambda: resumed("horovod", "ddp"),
    "from_ddp": lambda: resumed("ddp", "horovod"),
    "again": lambda: resumed("horovod", "horovod"),
}


def main() -> None:
    made = {}
    for name in sys.argv[4:] or [name for name in WAYS if name != "adasum"]:
        made[name] = WAYS[name]()
        assert torch.distributed.is_initialized() or STRATEGY == "single"
    if allranks.world().is_main:
        OUT.write_text(json.dumps(made))
        print(f"losses {made[name]['losses'][:2]}")


if __name__ == "__main__":
    main()
