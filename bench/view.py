"""How long it takes to look at a big run: 10 000 windows of 256 ranks on 32 nodes, 140 MB of files.

    python bench/view.py [--windows 10000] [--ranks 256] [--folder DIR]

The first look reads everything there is; the later ones what was added since, which is what a page that is
open pays every few seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import view_record
from allranks.schedulers.run_state import RunStatus
from view_rig import grow, make_run


def timed(action: Callable[[], Any]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


def measure(folder: Path, windows: int, ranks: int) -> None:
    run = make_run(folder, ranks=ranks, gpus_per_node=8, windows=windows, finished=False)
    size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    print(f"{windows} windows × {ranks} ranks, {size / 1e6:.0f} MB\n")
    source = RunSource(run)
    status = RunStatus(run, JobState.RUNNING)
    looks: dict[str, Callable[[], Any]] = {
        "refresh": source.refresh,
        "take": lambda: view_run(source, status),
        "plain": lambda: view_record(view_run(source, status)),
    }
    first = {name: timed(look) for name, look in looks.items()}
    maps = {
        f"heat {kind}": (lambda kind=kind: heatmap(source, kind)) for kind in heatmap_kinds(source)
    }
    first |= {name: timed(look) for name, look in maps.items()}
    grow(run, 1)
    later = {name: timed(look) for name, look in {**looks, **maps}.items()}
    print("| | first, ms | after one window more, ms |\n|---|---|---|")
    for name in first:
        print(f"| {name} | {first[name]:.1f} | {later[name]:.1f} |")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nmemory at most: {most:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measure(Path(folder), given.windows, given.ranks)


if __name__ == "__main__":
    main()
