"""How long a checkpoint holds up the training: in the background, waited for, and by other means.

python bench/checkpoint.py [--device cuda] [--sizes 50,500] [--rounds 5] [--folder DIR]

*Call* is the time until the call returns, which is all that is blocked on a CPU. *Next step* is the time
from before the call to the end of the step after it, less an ordinary step: it also counts what the copy
takes from a GPU, and what the writing thread takes from the step beside it.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer
from allranks.train.callbacks import Callback
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.loop.checkpoint_policy import CheckpointManager

WIDTH = 1024
Found = dict[str, tuple[list[float], list[float]]]
BETWEEN = 3
"""Steps without a save between two saves, for the time of an ordinary step."""


def network(megabytes: int) -> nn.Module:
    """Linear layers whose weights, and twice as much of Adam's, come to about this many MB."""
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * WIDTH * (WIDTH + 1))))
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)), nn.Linear(WIDTH, 1))


class Turns(Callback):
    """After every few steps another way to save, in random order; notes what each cost the training."""

    def __init__(self, device: str, rounds: int, folder: Path) -> None:
        self.device, self.rounds, self.folder = device, rounds, folder
        self.ordinary: list[float] = []
        self.calls: dict[str, list[float]] = {}
        self.blocked: dict[str, list[float]] = {}
        self._ways: dict[str, Callable[[], Any]] = {}
        self._left: list[str] = []
        self._began: tuple[str, float] | None = None
        self._since = 0.0

    def on_fit_start(self, trainer: Any) -> None:
        model, optimizer = trainer.model, trainer.optimizer
        background, waited = (self._manager(trainer, name) for name in ("background", "waited"))
        self._saved = background

        def by_torch() -> None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with open(self.folder / "torch.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

        def at_once() -> None:
            trainer.config.checkpoint_async = False
            waited.save(None, wanted=True)
            trainer.config.checkpoint_async = True

        self._ways = {
            "allranks, background": lambda: background.save(None, wanted=True),
            "allranks, waited for": at_once,
            "torch.save and fsync": by_torch,
        }
        self._ways |= lightning_way(model, self.folder)
        self._left = [way for _ in range(self.rounds + 1) for way in shuffled(self._ways)]

    def _manager(self, trainer: Any, name: str) -> CheckpointManager:
        trainer.config.checkpoint_async = name == "background"
        made = CheckpointManager(trainer.context, CheckpointStore(self.folder / name), lambda: None)
        made.take_over({})
        made.begin()
        trainer.config.checkpoint_async = True
        return made

    def on_step_end(self, trainer: Any) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._began is not None:
            self._note(now)
            self._saved.wait()  # outside of what is measured
        elif self._since:
            self.ordinary.append(now - self._since)
        if trainer.step % (BETWEEN + 1) == 0 and self._left:
            way = self._left.pop(0)
            self._began = (way, time.perf_counter())
            self._ways[way]()
            self.calls.setdefault(way, []).append(time.perf_counter() - self._began[1])
        elif not self._left and self._began is None:
            trainer.stop("all ways are measured")
        self._since = time.perf_counter()

    def _note(self, now: float) -> None:
        assert self._began is not None
        way, began = self._began
        self._began = None
        self.blocked.setdefault(way, []).append(now - began)

    def result(self) -> Found:
        """Seconds of each way, until the call returned and with the next step.

        Without its first time, which also makes buffers.
        """
        step = statistics.median(self.ordinary)
        return {
            way: (self.calls[way][1:], [each - step for each in self.blocked[way][1:]])
            for way in self._ways
        }


def shuffled(names: Any) -> list[str]:
    return random.sample([*names], len(names))


def lightning_way(model: nn.Module, folder: Path) -> dict[str, Callable[[], Any]]:
    """Lightning's own saving of the same weights and Adam; nothing where it is not installed."""
    try:
        pl = importlib.import_module("lightning.pytorch")
    except ImportError:
        return {}

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = copy.deepcopy(model)  # Lightning leaves what it trained on the CPU

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.net.parameters())

    own = pl.Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    own.fit(module, DataLoader(TensorDataset(torch.zeros(1, WIDTH)), 1))
    device = next(model.parameters()).device
    module.to(device)
    for state in own.optimizers[0].state.values():
        state.update({key: value.to(device) for key, value in state.items() if value.dim()})
    return {"Lightning": lambda: own.save_checkpoint(folder / "lightning.ckpt")}


def measured(megabytes: int, device: str, rounds: int, folder: Path) -> Found:
    torch.manual_seed(0)
    model = network(megabytes)
    turns = Turns(device, rounds, folder)
    config = TrainConfig(
        max_steps=10**6, compute_setup="gpu" if device == "cuda" else "cpu", checkpoint=False,
        summary=False, verbose=False, print_every=0, progress=False, compile=False,
        root_folder=str(folder / "runs"), strategy="single", log_every=10**6,
    )  # fmt: skip
    data = TensorDataset(torch.randn(64, WIDTH), torch.randn(64, 1))
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), config, callbacks=[turns])
    trainer.fit(DataLoader(data, 1))
    return turns.result()


def table(megabytes: int, device: str, found: Found) -> str:
    whole = statistics.median(found["allranks, waited for"][0])
    lines = [
        f"{megabytes} MB on {device}: milliseconds that a save holds up the training (median, range)",
        f"  {'':22} {'call':>8} {'':>17} {'of waiting':>10}   {'next step':>9} {'':>17}",
    ]
    for way, (calls, steps) in found.items():
        share = f"{statistics.median(calls) / whole:10.1%}"
        lines.append(f"  {way:22} {_numbers(calls)} {share}   {_numbers(steps, 9)}")
    if "Lightning" not in found:
        lines.append("  Lightning is not installed here: pip install lightning")
    return "\n".join(lines)


def _numbers(seconds: list[float], width: int = 8) -> str:
    spread = f"{min(seconds) * 1e3:.1f}–{max(seconds) * 1e3:.1f}"
    return f"{statistics.median(seconds) * 1e3:{width}.1f} {spread:>17}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", default="50,500")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to be measured; a temporary one by default")
    options = parser.parse_args()
    for size in map(int, options.sizes.split(",")):
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            found = measured(size, options.device, options.rounds, folder)
            print(table(size, options.device, found), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
