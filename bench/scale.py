"""Does the work grow linearly? One, a hundred, ten thousand of everything, without a cluster.

    python bench/scale.py [--json]

Prints the time of each piece and the time per item; the last column compares the time per item of
the largest size with that of the middle one. Linear is 1; far above it something is quadratic.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SIZES = (1, 100, 10_000)
Work = Callable[[], object]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of our own, and the index in it: the user's is left alone."""
    with tempfile.TemporaryDirectory(prefix="allranks-scale-") as name:
        os.environ["XDG_STATE_HOME"] = name
        os.environ["ALLRANKS_RUNS"] = f"{name}/runs"
        yield Path(name)


def host_list_expand(size: int, _: Path) -> Work:
    """node[00001-10000] → names."""
    from allranks.runtime.world.hostlist import expand_hostlist

    text = f"node[{1:05}-{size:05}]"
    return lambda: expand_hostlist(text)


def host_list_ragged(size: int, _: Path) -> Work:
    """The same with every second node missing: no range helps."""
    from allranks.runtime.world.hostlist import expand_hostlist

    text = "node[" + ",".join(str(n) for n in range(1, 2 * size, 2)) + "]"
    return lambda: expand_hostlist(text)


def log_merge(size: int, folder: Path) -> Work:
    """Ten lines of each rank, merged by time."""
    from allranks.runs.attempt import Attempt
    from allranks.runs.log_lines import attempt_lines

    attempt = folder / f"merge-{size}" / "attempts" / "1"
    (attempt / "ranks").mkdir(parents=True)
    for rank in range(size):
        text = "".join(
            f"2026-11-15T10:{step:02}:00.{rank:06}Z o step {step} loss 0.1\n" for step in range(10)
        )
        (attempt / "ranks" / f"rank-{rank:05}.log").write_text(text)

    def merge() -> None:
        lines = sum(1 for _ in attempt_lines(Attempt.open(attempt)))
        assert lines == 10 * size

    return merge


def log_tail(size: int, folder: Path) -> Work:
    """The last ten lines over all ranks, of the files made for the merge."""
    from allranks.runs.log_lines import read_logs
    from allranks.runs.run_folder import Run

    run = Run.open(folder / f"merge-{size}")
    return lambda: list(read_logs(run, tail=10))


def squeue_parse(size: int, _: Path) -> Work:
    """What ``allranks ps`` reads: one line per job."""
    from allranks.cluster.slurm.job_status import parse_squeue

    line = "{n}|{n}|RUNNING|None|0|1794711126|1794711726|10:00|0|node[1-2]|main|me|train {n}|\n"
    text = "".join(line.format(n=n) for n in range(size))
    return lambda: list(parse_squeue(text))


def sacct_parse(size: int, _: Path) -> Work:
    """One line per life of a job, two lives each."""
    from allranks.cluster.slurm.job_status import parse_sacct

    line = "{n}|{n}|FAILED|None|3:0|1794711126|1794711161|00:10:00|node1|main|me|train\n"
    text = "".join(line.format(n=n) for n in range(size)) * 2
    return lambda: list(parse_sacct(text))


def array_summary(size: int, _: Path) -> Work:
    """An array with so many tasks as one status."""
    from allranks.cluster.slurm.job_status import parse_squeue, summarise

    line = "9_{n}|{n}|COMPLETED|None|0|1794711126|1794711726|10:00|0|node1|main|me|train|\n"
    tasks = list(parse_squeue("".join(line.format(n=n) for n in range(size))))
    return lambda: summarise("9", tasks)


def run_find(size: int, folder: Path) -> Work:
    """One run by name among so many."""
    from allranks.runs.run_lookup import find_run

    root = folder / f"find-{size}"
    for number in range(size):
        (root / f"r{number}-20260101-000000").mkdir(parents=True)
    (root / "r0-20260101-000000" / "run.json").write_text('{"job_ids": ["7"]}')
    return lambda: find_run("r0", root)


def run_find_by_job(size: int, folder: Path) -> Work:
    """One run by a job id that the index does not know: every run.json is opened."""
    from allranks.runs.run_lookup import find_run

    return lambda: find_run("7", folder / f"find-{size}")


def render(size: int, _: Path) -> Work:
    """A job script for so many nodes; its length must not depend on them."""
    from allranks.core.units import Gpus
    from allranks.job.defaults import derive
    from allranks.job.fields import Job
    from allranks.job.sbatch.render import render as to_text

    job = Job(script="train.py", nodes=size, gpus_per_node=Gpus(8))
    return lambda: to_text(derive(job, {}))


PIECES: tuple[Callable[[int, Path], Work], ...] = (
    host_list_expand,
    host_list_ragged,
    log_merge,
    log_tail,
    squeue_parse,
    sacct_parse,
    array_summary,
    run_find,
    run_find_by_job,
    render,
)


def measure(work: Work) -> float:
    """The best of three, repeated until one takes long enough to be measured."""
    best = float("inf")
    for _ in range(3):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < 0.02:
            work()
            count += 1
        best = min(best, (time.perf_counter() - began) / count)
    return best


def times(piece: Callable[[int, Path], Work], folder: Path) -> list[float] | str:
    """Seconds at each size, or why there are none."""
    try:
        return [measure(piece(size, folder)) for size in SIZES]
    except ImportError as error:
        return f"not there ({error.name})"


def row(name: str, found: list[float] | str) -> str:
    """A line of the table."""
    if isinstance(found, str):
        return f"{name:18} {found}"
    each = [seconds / size for seconds, size in zip(found, SIZES, strict=True)]
    cells = "".join(
        f"{s * 1e3:11.3f} ms{e * 1e6:10.2f} µs" for s, e in zip(found, each, strict=True)
    )
    return f"{name:18}{cells}{each[-1] / each[-2]:8.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    as_json = parser.parse_args().json
    with scratch() as folder:
        results = {piece.__name__: times(piece, folder) for piece in PIECES}
    if as_json:
        print(json.dumps({"sizes": SIZES, "seconds": results}, indent=2))
        return
    print(
        f"{'':18}" + "".join(f"{f'{size} in all':>14}{'each':>13}" for size in SIZES) + "  growth"
    )
    for name, found in results.items():
        print(row(name, found))


if __name__ == "__main__":
    main()
