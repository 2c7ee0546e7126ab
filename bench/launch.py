"""How long a launcher takes from command to end, with work that takes no time itself.

    python bench/launch.py [--rounds 5] [--nprocs 2] [--only floor,fork]
    python bench/launch.py --storm 1,4,16        ranks on one node, forked and not

The launchers take turns in random order, so that a busy machine is unfair to all alike. The floor
is what nobody who starts an interpreter per rank can beat: one subprocess each, variables set.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORK = str(Path(__file__).parent / "allreduce.py")
BIN = Path(sys.executable).parent
Launch = Callable[[int], object]


def environment(**extra: object) -> dict[str, str]:
    """The same threads for everybody; torchrun would set it itself, the floor would not."""
    dropped = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHONDONTWRITEBYTECODE",
    )
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {**kept, "OMP_NUM_THREADS": "1", **{key: str(value) for key, value in extra.items()}}


def free_port() -> int:
    """A port that nobody uses now."""
    from allranks.runtime.world.endpoints import derived_port
    from allranks.runtime.world.endpoints import free_port as first_free

    return first_free("127.0.0.1", derived_port(str(time.monotonic_ns())))


def floor(nprocs: int) -> None:
    """One subprocess per rank."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, WORK],
            env=environment(
                RANK=rank,
                LOCAL_RANK=rank,
                WORLD_SIZE=nprocs,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(nprocs)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit("the floor failed")


def call(*words: str) -> Launch:
    """A launcher that is a command; {n} stands for the number of ranks, {port} for a free port."""

    def launch(nprocs: int) -> None:
        port = free_port()
        filled = [word.format(n=nprocs, port=port) for word in words]
        done = subprocess.run(filled, env=environment(), capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(filled)} failed:\n{done.stderr.decode()[-2000:]}")

    return launch


def launchers() -> dict[str, Launch]:
    """Those that are installed here."""
    agent = (sys.executable, "-m", "allranks.runtime.agent", "ranks", "--nprocs", "{n}")
    found: dict[str, Launch] = {
        "floor": floor,
        "fork": call(*agent, "--mode", "fork", "--preload", "torch", "--", WORK),
        "exec": call(*agent, "--mode", "exec", "--", sys.executable, WORK),
    }
    if importlib.util.find_spec("allranks.__main__"):
        found["allranks run"] = call(
            sys.executable, "-m", "allranks", "run", "--nprocs", "{n}", WORK
        )
    rest = {
        "torchrun": ("--nproc-per-node", "{n}", "--master-port", "{port}"),
        # --cpu starts one process only; --multi_gpu starts all, and gloo needs no GPU.
        "accelerate": (
            "launch",
            "--multi_gpu",
            "--num_processes",
            "{n}",
            "--main_process_port",
            "{port}",
        ),
        "deepspeed": ("--num_gpus", "{n}", "--master_port", "{port}"),
    }
    for name, options in rest.items():
        if (BIN / name).exists():
            found[name] = call(str(BIN / name), *options, WORK)
    return found


def seconds(launch: Launch, nprocs: int) -> float:
    """From command to end."""
    began = time.perf_counter()
    launch(nprocs)
    return time.perf_counter() - began


def compare(names: list[str], rounds: int, nprocs: int) -> None:
    """Time them all and print the table."""
    chosen = {name: launch for name, launch in launchers().items() if not names or name in names}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for launch in chosen.values():  # once for the file cache
        launch(nprocs)
    for _ in range(rounds):
        for name in random.sample(list(chosen), len(chosen)):
            times[name].append(seconds(chosen[name], nprocs))
    base = statistics.median(times.get("floor") or next(iter(times.values())))
    print(f"| launcher, {nprocs} ranks | median s | min-max | / floor |\n|---|---|---|---|")
    for name, taken in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(taken)
        print(
            f"| {name} | {middle:.2f} | {min(taken):.2f}-{max(taken):.2f} | {middle / base:.2f} |"
        )


def storm(counts: list[int], rounds: int) -> None:
    """Many ranks on one node: what importing once saves, also in files opened."""
    ways = {name: launch for name, launch in launchers().items() if name in ("fork", "exec")}
    print("| ranks | fork s | exec s | fork / exec | fork files | exec files |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        taken = {name: [] for name in ways}
        for _ in range(rounds):
            for name in random.sample(list(ways), len(ways)):
                taken[name].append(seconds(ways[name], count))
        fork, other = (statistics.median(taken[name]) for name in ("fork", "exec"))
        opened = [opens(name, count) for name in ("fork", "exec")]
        ratio = f"{fork:.2f} | {other:.2f} | {fork / other:.2f}"
        print(f"| {count} | {ratio} | {opened[0]} | {opened[1]} |")


def opens(name: str, count: int) -> str:
    """Files that a launch opens, counted by strace where there is one."""
    tracer = shutil.which("strace")
    if not tracer:
        return "-"
    command = [WORK] if name == "fork" else [sys.executable, WORK]
    preload = ["--preload", "torch"] if name == "fork" else []
    words = ["--nprocs", str(count), "--mode", name, *preload, "--", *command]
    traced = subprocess.run(
        [tracer, "-f", "-c", "-e", "trace=openat,open,newfstatat,stat,lstat", "-o", "/dev/stdout",
         sys.executable, "-m", "allranks.runtime.agent", "ranks", *words],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [line.split() for line in traced.stdout.splitlines()]
    total = sum(
        int(row[3]) for row in rows if len(row) >= 5 and row[-1] != "total" and row[3].isdigit()
    )
    return str(total)


def main() -> None:
    """Read the options, print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nprocs", type=int, default=2)
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--storm", help="ranks per node, with commas: 1,4,16")
    options = parser.parse_args()
    if options.storm:
        storm([int(count) for count in options.storm.split(",")], options.rounds)
    else:
        compare([name for name in options.only.split(",") if name], options.rounds, options.nprocs)


if __name__ == "__main__":
    main()
