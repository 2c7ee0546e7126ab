"""What it costs to sample a node: the sampler's own CPU time, and what its ranks lose by it.

    python bench/sampling.py [--processes 1,8,64] [--samples 20] [--rounds 6]

First the CPU time of one sample, by the number of processes below the agent, and the share of one CPU
at the interval of the first ten minutes. The first sample asks the kernel which pages processes share;
later that is done within an allowance of 0.05 % of one CPU, which comes on top. Of the GPUs: the CPU
time of one second's reading. Then a CPU-bound rank under an agent that samples five times as often as
usual, and under one that does not, in turn: what it gets done in a second of its own CPU time, so that
others on the machine do not count, and the CPU time of the agent beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERVAL = 5.0
WORK = """
import time
end, done = time.monotonic() + 3, 0
while time.monotonic() < end:
    done += sum(range(1000))
print(done, time.process_time())
"""


@contextmanager
def processes(count: int, megabytes: int) -> Iterator[list[int]]:
    """Forked children that hold memory of their own and wait."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            held = bytearray(os.urandom(4096)) * (megabytes << 8)
            signal.pause()
            os._exit(len(held) & 0)
        pids.append(pid)
    time.sleep(0.5 + count * megabytes / 4000)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def cost_of_samples(counts: list[int], samples: int, megabytes: int) -> None:
    """CPU seconds of the first sample and of those after it."""
    from allranks.runtime.telemetry.node_metrics import NodeMetrics
    from allranks.runtime.telemetry.process_tree import ProcessTree

    print(f"{'processes':>9} {'first, ms':>10} {'later, ms':>10} {'of one CPU':>11}")
    for count in counts:
        with processes(count, megabytes):
            began = time.thread_time()
            node = NodeMetrics(ProcessTree(os.getpid()), os.environ)
            first = time.thread_time() - began
            while time.thread_time() - began < 0.4:  # the allowance for shares of memory is spent
                node.sample()
            later = []
            for _ in range(samples):
                began = time.thread_time()
                node.sample()
                node.facts()
                later.append(time.thread_time() - began)
                time.sleep(0.05)
        mean = statistics.mean(later)
        print(f"{count:>9} {first * 1e3:>10.2f} {mean * 1e3:>10.2f} {mean / INTERVAL:>11.4%}")


def cost_of_gpus(ticks: int) -> None:
    """CPU seconds of reading every GPU once."""
    from allranks.runtime.telemetry.gpu_poller import find_gpus

    gpus = find_gpus()
    if not gpus:
        print("\nno GPUs here")
        return
    costs = []
    for _ in range(ticks):
        began = time.thread_time()
        for gpu in gpus:
            gpu.read()
        costs.append(time.thread_time() - began)
    mean = statistics.mean(costs)
    print(f"\n{len(gpus)} GPUs: {mean * 1e3:.3f} ms a second, {mean:.4%} of one CPU")


def work(folder: Path, sample: str) -> tuple[float, float]:
    """What a rank gets done in a second of CPU time, and the agent's CPU seconds."""
    env = {**os.environ, "ALLRANKS_SAMPLE": sample, "ALLRANKS_ATTEMPT_DIR": str(folder)}
    agent = [
        sys.executable,
        "-m",
        "allranks.runtime.agent",
        "ranks",
        "--nprocs",
        "1",
        "--mode",
        "exec",
    ]
    command = [*agent, "--", sys.executable, "-c", WORK]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    amount, seconds = map(float, done.stdout.split())
    both = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return amount / seconds, both - seconds


def slowdown(rounds: int) -> None:
    """Both in turn, each time in the other order."""
    with tempfile.TemporaryDirectory() as name:
        ratios, agents = [], []
        for number in range(rounds):
            order = ("1", "off") if number % 2 else ("off", "1")
            found = {sample: work(Path(name) / f"{number}-{sample}", sample) for sample in order}
            ratios.append(found["1"][0] / found["off"][0])
            agents.append(found["1"][1] - found["off"][1])
    print(f"\nwork beside the sampler / without it, {rounds} rounds: ", end="")
    print(f"{statistics.median(ratios):.4f} ({min(ratios):.4f}–{max(ratios):.4f})")
    print(f"CPU time that it adds to the agent in 3 s: {statistics.median(agents) * 1e3:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="1,8,64")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=20, help="held by each process")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    counts = [int(word) for word in options.processes.split(",")]
    cost_of_samples(counts, options.samples, options.megabytes)
    cost_of_gpus(options.samples)
    if options.rounds:
        slowdown(options.rounds)


if __name__ == "__main__":
    main()
