"""What a training step costs, beside loops written by hand and other libraries.

    python bench/train.py                                     the loop alone: a tiny model on the CPU
    python bench/train.py --dataset class                     with data that no library can look into
    python bench/train.py --device cuda --model gpt,vit,mlp   real models on a GPU
    python bench/train.py --device cuda --one allranks --model gpt --json      a single run

All take turns in random order. On the CPU each entry is a process that waits for its turn, so nothing
is imported between two measurements and a round is a fair pair with the raw loop of that round; on a
GPU each measurement is a process of its own, so that memory and compile caches are its own as well.
What is not installed is skipped, with its reason.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import train_loops as loops
import train_rivals as rivals
import train_tables as tables
from train_models import workload
from train_turns import Fresh, Waiting


@dataclass(frozen=True)
class Entry:
    """One row of the tables."""

    run: Callable[[loops.Setting], None]
    package: str = "torch"
    tuned: bool = False


CPU = {
    "raw": Entry(loops.raw),
    "allranks": Entry(loops.allranks_trainer, "allranks"),
    "allranks.prepare": Entry(loops.allranks_prepare, "allranks"),
    "accelerate": Entry(rivals.accelerate, "accelerate"),
    "fabric": Entry(rivals.fabric, "lightning"),
    "lightning": Entry(rivals.lightning_default, "lightning"),
    "lightning bare": Entry(rivals.lightning_bare, "lightning"),
    "ignite": Entry(rivals.ignite, "ignite"),
    "transformers": Entry(rivals.transformers, "transformers"),
}
GPU = {
    "naive": Entry(loops.naive),
    "by hand": Entry(loops.by_hand, tuned=True),
    "allranks": Entry(loops.allranks_trainer, "allranks", tuned=True),
    "allranks auto": Entry(loops.allranks_trainer, "allranks"),
    "accelerate": Entry(rivals.accelerate, "accelerate"),
    "accelerate tuned": Entry(rivals.accelerate, "accelerate", tuned=True),
    "lightning": Entry(rivals.lightning_default, "lightning"),
    "lightning tuned": Entry(rivals.lightning_default, "lightning", tuned=True),
    "transformers": Entry(rivals.transformers, "transformers"),
    "transformers tuned": Entry(rivals.transformers, "transformers", tuned=True),
}


# Steps before the measured ones, and measured steps. The CPU has the MLP's.
STEPS = {"mlp": (200, 2000), "gpt": (40, 60), "vit": (40, 60)}


def table(options: argparse.Namespace) -> dict[str, Entry]:
    """The entries for this device; --tiny tries those for a GPU without one."""
    return GPU if options.device == "cuda" or options.tiny else CPU


def entries(options: argparse.Namespace) -> dict[str, Entry]:
    """Those that were asked for and are installed here."""
    wanted = [name for name in options.only.split(",") if name]
    found = {}
    for name, entry in table(options).items():
        if wanted and name not in wanted:
            continue
        if importlib.util.find_spec(entry.package) is None:
            print(f"{name}: skipped, {entry.package} is not installed", file=sys.stderr)
            continue
        found[name] = entry
    return found


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in this process; what goes wrong is the result as well."""
    import torch

    entry = table(options)[name]
    if options.device == "cpu":
        torch.set_num_threads(1)
    gc.collect()
    work = workload(options.model, options.dataset, options.tiny)
    with tempfile.TemporaryDirectory() as folder:
        try:
            getattr(__import__(entry.package), "Trainer", None)  # imported here, not in the total
            clock = loops.Clock(
                options.warm, options.warm + options.steps, options.device == "cuda"
            )
            setting = loops.Setting(work, options.device, clock, Path(folder), entry.tuned)
            entry.run(setting)
            return {**clock.result(), "flops": setting.flops}
        except Exception as error:  # noqa: BLE001 - a rival that fails must not end the others
            print(traceback.format_exc(), file=sys.stderr)
            return {"error": f"{type(error).__name__}: {error}"[:300]}


def peak() -> dict[str, Any]:
    """The matrix product this GPU reaches, in operations per second: what MFU is measured by."""
    import torch

    size = 8192
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            left @ right
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / 20)
    return {"peak": 2 * size**3 / best, "gpu": torch.cuda.get_device_name()}


def serve(options: argparse.Namespace) -> None:
    """Measure at once, or once for every line that comes in; what libraries print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    if not options.json:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not options.debug:
            os.dup2(1, 2)
    else:
        os.dup2(2, 1)
    for _ in sys.stdin if options.serve else [""]:
        result = peak() if options.one == "peak" else measured(options.one, options)
        print(json.dumps(result), file=answers, flush=True)


def command(name: str, model: str, options: argparse.Namespace) -> list[str]:
    """The command line of a process that measures one entry."""
    words = [sys.executable, __file__, "--one", name, "--model", model]
    words += ["--device", options.device, "--dataset", options.dataset]
    warm, steps = STEPS[model]
    words += ["--steps", str(options.steps or steps), "--warm", str(options.warm or warm)]
    return [*words, *(["--tiny"] if options.tiny else []), *(["--debug"] if options.debug else [])]


def rounds(model: str, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry once per round, in random order; after an error no more of it."""
    waiting = options.device == "cpu" and not options.tiny
    runners = {
        name: Waiting(words) if waiting else Fresh(words, options.cold)
        for name in entries(options)
        if (words := command(name, model, options))
    }
    everything = list(runners.values())
    if waiting:
        for name in list(runners):  # imports and caches, not counted
            if "error" in (result := runners[name]()):
                print(f"{name}: left out, {result['error']}", file=sys.stderr)
                del runners[name]
    for number in range(options.rounds):
        for name in random.sample(list(runners), len(runners)):
            result = runners[name]()
            if "error" in result:
                print(f"{name}: left out, {result['error']}", file=sys.stderr)
                del runners[name]
                continue
            print(
                f"{model} round {number + 1} {name}: {1e6 * result['step']:.1f} us", file=sys.stderr
            )
            yield name, result
    for runner in everything:
        runner.end()


def compare(options: argparse.Namespace) -> None:
    """Measure everything and print a table per model."""
    top = Fresh([*command("peak", "mlp", options)])() if options.device == "cuda" else {}
    for model in options.model.split(","):
        results: dict[str, list[dict[str, Any]]] = {}
        for name, result in rounds(model, options):
            results.setdefault(name, []).append(result)
        if not results:
            continue
        if "raw" in results:
            tables.overhead(results, f"{model}, data: {options.dataset}")
        else:
            tables.speed(results, workload(model, options.dataset, options.tiny), top, options.cold)


def main() -> None:
    """Read the options, then print tables or measure one entry."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=found)
    parser.add_argument(
        "--model", help="mlp, gpt, vit, with commas [default: mlp on the CPU, else all]"
    )
    parser.add_argument("--dataset", choices=["tensors", "class", "batches"], default="tensors")
    parser.add_argument("--only", default="", help="names of entries, with commas")
    parser.add_argument("--rounds", type=int, help="[default: 7 on the CPU, 3 on a GPU]")
    parser.add_argument(
        "--steps", type=int, help="measured steps [default: 2000, and 60 of gpt and vit]"
    )
    parser.add_argument("--warm", type=int, help="steps before them [default: 200, and 40]")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the GPU entries")
    parser.add_argument("--cold", action="store_true", help="empty compile caches for every run")
    parser.add_argument("--one", help="measure this entry only, in this process, and print JSON")
    parser.add_argument("--serve", action="store_true", help="with --one: once per line of stdin")
    parser.add_argument("--json", action="store_true", help="with --one: show what it prints, too")
    parser.add_argument(
        "--debug", action="store_true", help="show what the entries write as errors"
    )
    options = parser.parse_args()
    cpu = options.device == "cpu"
    options.model = options.model or ("mlp" if cpu else "gpt,vit,mlp")
    options.rounds = options.rounds or (7 if cpu else 3)
    warm, steps = STEPS[options.model.split(",")[0]]
    if options.one:
        options.warm, options.steps = options.warm or warm, options.steps or steps
    serve(options) if options.one else compare(options)


if __name__ == "__main__":
    main()
