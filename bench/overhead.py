"""What measuring adds to a training step: the same training with timing on and off, in turns.

    python bench/overhead.py                          a tiny model on one CPU thread, 1 and 2 ranks
    python bench/overhead.py --device cuda            a tiny MLP and GPT-2 124M on one GPU
    python bench/overhead.py --log-every 1 --rounds 30 --seconds 300

Each row is a process that trains on and off in random order, so that both see the same machine, until all
rounds are made or its seconds are over; a round that has begun is finished. Blocks of steps are timed;
*calm* are the fastest twentieth of them, to be looked at where others use the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from statistics import median

import torch
from train_models import cross_entropy, workload

STEPS = {"mlp": (200, 1000, 50), "gpt": (10, 40, 10)}
"""Steps before the measured ones, measured steps, and how many make a block that is timed."""


class Blocks:
    """Notes the time after every so many steps; it hangs on the optimizer."""

    def __init__(self, model: str, cuda: bool) -> None:
        self.first, _, self.many = STEPS[model]
        self.cuda, self.count = cuda, 0
        self.times: list[tuple[float, float]] = []

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count >= self.first and not (self.count - self.first) % self.many:
            if self.cuda:
                torch.cuda.synchronize()
            self.times.append((time.perf_counter(), time.process_time()))

    def result(self) -> dict[str, list[float]]:
        """Microseconds per step of every block: wall time, and busy on the CPU."""
        pairs = list(itertools.pairwise(self.times))
        wall, busy = ([1e6 * (b[i] - a[i]) / self.many for a, b in pairs] for i in (0, 1))
        return {"wall": wall, "cpu": busy}


def trained(options: argparse.Namespace, timing: str, folder: str) -> dict[str, list[float]]:
    """One training with timing on or off."""
    from allranks import TrainConfig, Trainer

    os.environ["ALLRANKS_TIMING"] = timing
    cuda = options.device == "cuda"
    work = workload(options.one, "tensors", options.tiny)
    torch.manual_seed(0)
    model = work.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    blocks = Blocks(options.one, cuda)
    optimizer.register_step_post_hook(blocks)
    steps = sum(STEPS[options.one][:2])
    config = TrainConfig(
        max_steps=steps, nprocs=options.nprocs, log_every=options.log_every,
        compute_setup="gpu" if cuda else "cpu", precision="bf16" if cuda else "fp32", compile=False,
        checkpoint=False, verbose=False, summary=False, progress=False, print_every=0,
        root_folder=folder, audit=False,
    )  # fmt: skip
    loader = work.loader(steps * options.nprocs, pin=cuda)
    Trainer(model, optimizer, config, loss_fn=cross_entropy).fit(loader)
    return blocks.result()


def measure(options: argparse.Namespace) -> None:
    """All rounds of one row, in this process and the ranks that it starts."""
    from allranks import world
    from allranks.runtime.world.communicator import get_communicator

    end = time.monotonic() + options.seconds
    torch.set_num_threads(1)
    turns = random.Random(1)  # the same on all ranks
    taken: dict[str, dict[str, list[float]]] = {"on": {}, "off": {}}
    with tempfile.TemporaryDirectory() as folder:
        for timing in ("on", "off"):  # imports and caches, not counted
            trained(options, timing, folder)
        for _ in range(options.rounds):
            for timing in turns.sample(["on", "off"], 2):
                for key, blocks in trained(options, timing, folder).items():
                    taken[timing].setdefault(key, []).extend(blocks)
            if any(get_communicator(world().size).all_gather(time.monotonic() > end)):
                break
    if world().is_main:
        print(json.dumps(taken))


def row(model: str, ranks: int, every: int, options: argparse.Namespace) -> str:
    """A line of the table, measured by a process of its own."""
    words = [sys.executable, __file__, "--one", model, "--nprocs", str(ranks)]
    words += ["--log-every", str(every), "--rounds", str(options.rounds)]
    words += ["--seconds", str(options.seconds)]
    words += ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    taken = json.loads(done.stdout.strip().splitlines()[-1])
    on, off = taken["on"], taken["off"]
    calm = [sorted(each["wall"])[len(each["wall"]) // 20] for each in (on, off)]
    return (
        f"| {model} | {ranks} | {every} | {median(off['wall']):.1f} |"
        f" {median(on['wall']) - median(off['wall']):+.2f} |"
        f" {median(on['cpu']) - median(off['cpu']):+.2f} |"
        f" {calm[1]:.1f} | {calm[0] - calm[1]:+.2f} | {calm[0] / calm[1]:.4f} |"
    )


def compare(options: argparse.Namespace) -> None:
    """Print the table."""
    print(
        "| us per step: model | ranks | log_every | off | on adds | CPU | off, calm | on adds | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for model in options.model.split(","):
        for ranks in map(int, options.ranks.split(",")):
            for every in map(int, options.log_every.split(",")):
                print(row(model, ranks, every, options), flush=True)


def main() -> None:
    """Read the options, then print the table or measure one row of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=found)
    parser.add_argument(
        "--model", help="mlp, gpt, with commas [default: mlp on the CPU, else both]"
    )
    parser.add_argument("--ranks", help="with commas [default: 1,2 on the CPU, else 1]")
    parser.add_argument("--log-every", help="with commas [default: 50,1 on the CPU, else 10]")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try gpt without a GPU")
    parser.add_argument("--one", help="measure this model, in this process, and print JSON")
    parser.add_argument("--nprocs", type=int, default=1, help="with --one")
    options = parser.parse_args()
    cpu = options.device == "cpu"
    options.model = options.model or ("mlp" if cpu else "mlp,gpt")
    options.ranks = options.ranks or ("1,2" if cpu else "1")
    options.log_every = options.log_every or ("50,1" if cpu else "10")
    if options.one:
        options.log_every = int(options.log_every)
        measure(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
