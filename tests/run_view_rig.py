"""RunViews made by hand: the same run at every call, at a fixed time."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from allranks.cluster.slurm.job_states import JobState
from allranks.observe.view.model import GpuNow, NodeNow, RankNow, RunView, TrainingProgress
from allranks.runs.attempt import Attempt, Failure
from allranks.runs.attempt_history import AttemptSummary, Goodput
from allranks.runs.run_folder import Run
from allranks.schedulers.run_state import RunStatus

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=timezone.utc)
GIB = 2**30
RUN = Run(
    Path("/home/you/runs/train-20261115-105757"),
    "train",
    "train-20261115-105757",
    scheduler="slurm",
    job_ids=["4711"],
)
VALUES = {
    "train_loss": 2.1346,
    "lr": 2.97e-4,
    "samples_per_second": 1287.3,
    "grad_norm": 0.4312,
    "step_seconds": 0.2163,
    "tokens_per_second": 1318195.0,
    "mfu": 0.431,
    "val_loss": 2.2418,
    "val_accuracy": 0.8132,
}
PHASES = {
    "data": 0.0121,
    "forward": 0.0577,
    "backward": 0.1102,
    "communication": 0.0216,
    "optimizer": 0.0125,
    "checkpoint": 0.0002,
    "other": 0.0020,
}
LINES = (
    "[0] step 12380 loss 2.1401",
    "[1] step 12380 loss 2.1398",
    "[0] step 12390 loss 2.1377",
    "[0] step 12400 loss 2.1346",
)


def status(state: JobState = JobState.RUNNING, **changes: object) -> RunStatus:
    """Of job 4711, begun an hour ago."""
    known = {
        "job_id": "4711",
        "nodes": "node[1-2]",
        "start": NOW - timedelta(hours=1, minutes=2, seconds=3),
        "attempts": 2,
    }
    return RunStatus(RUN, state, **{**known, **changes})  # type: ignore[arg-type]


def run_view(ranks: int = 8, straggler: int | None = 5, gpus: bool = True) -> RunView:
    """A run in good health on two nodes, but for one slow rank."""
    rows = [_rank(number, number == straggler, gpus, ranks) for number in range(ranks)]
    return RunView(
        status=status(),
        progress=TrainingProgress(
            12400, 25000, 3, 6, 2725.0, 12000, deadline=(NOW + timedelta(hours=2)).timestamp()
        ),
        values=VALUES if gpus else {k: v for k, v in VALUES.items() if k != "mfu"},
        loss=[(step, 1.8 + 8.5 / (1 + step / 900) ** 0.9) for step in range(100, 12401, 100)],
        val_loss=[(4000.0, 2.61), (8000.0, 2.37), (12000.0, 2.2418)],
        phases=PHASES,
        nodes=[_node(number, rows, gpus) for number in range(2)],
        ranks=rows,
        attempts=[_entry(1, "timed out", 0, 8000), _entry(2, "running", 8000, 12400)],
        goodput=Goodput(6821.0, 7423.0),
        last_lines=LINES,
        time=NOW.timestamp(),
    )


def pending() -> RunView:
    """In the queue, nothing begun."""
    waiting = status(
        JobState.PENDING,
        nodes="",
        start=None,
        attempts=0,
        why="it is next; waiting for nodes to become free",
        expected_start=NOW + timedelta(minutes=25),
    )
    return RunView(waiting, TrainingProgress(), time=NOW.timestamp())


def own_script() -> RunView:
    """A script that tells nothing: logs and nodes are all there is."""
    full = run_view(4, None, gpus=False)
    bare = [RankNow(rank.rank, rank.host) for rank in full.ranks]
    return RunView(
        status(attempts=1),
        TrainingProgress(),
        nodes=full.nodes,
        ranks=bare,
        attempts=[replace(_entry(1, "running", 0, 0), first_step=None, last_step=None)],
        goodput=Goodput(0.0, 3723.0),
        last_lines=LINES,
        time=NOW.timestamp(),
    )


def one_task() -> RunView:
    """A task of a job array, two others of which have failed."""
    full = run_view(4, None)
    return replace(
        full,
        status=status(attempts=1),
        task="3",
        failed_tasks=["1", "7"],
        attempts=full.attempts[1:],
    )


def stalled() -> RunView:
    """Nothing has been heard of it for two hours, and of its second node for an hour."""
    full = run_view(4, None)
    now = replace(
        full.progress,
        eta_seconds=None,
        last_step_time=NOW.timestamp() - 7200,
        stalled_seconds=7200.0,
    )
    nodes = [full.nodes[0], replace(full.nodes[1], time=NOW.timestamp() - 3600)]
    return replace(full, progress=now, nodes=nodes)


def failed() -> RunView:
    """Rank 2 ran out of memory."""
    full = run_view(8, None)
    ranks = [replace(rank, failed=rank.rank == 2) for rank in full.ranks]
    ended = status(
        JobState.FAILED, exit_code=1, end=NOW - timedelta(minutes=1), why="rank 2 failed first"
    )
    trace = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 31, in training_step\n'
        "    loss = self.loss(self.model(x), y)\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
    )
    failure = Failure(2, "node1", 2, 4002, 1, traceback=trace)
    return replace(full, status=ended, ranks=ranks, error=failure)


def _rank(number: int, slow: bool, gpus: bool, count: int) -> RankNow:
    node = number * 2 // count
    local = number - node * count // 2
    gpu = GpuNow(
        local,
        "NVIDIA H200",
        f"GPU-{node}-{local}",
        use=0.97 if slow else 0.71 + number % 4 * 0.05,
        memory=int((112.5 + number % 3) * GIB),
        memory_total=140 * GIB,
        power=655.0 if slow else 510.0 + number % 5 * 7,
        power_limit=700.0,
        temperature=71.0 if slow else 60.0 + number % 4,
    )
    compute = 0.2503 if slow else 0.1804 + math.sin(number) * 0.002
    return RankNow(
        number,
        f"node{node + 1}",
        gpu if gpus else None,
        0.2893,
        0.0121,
        compute,
        0.2850 - compute - 0.0121,
        behind=0.31 if slow else 0.0,
        straggler=slow,
    )


def _node(number: int, ranks: list[RankNow], gpus: bool) -> NodeNow:
    here = [rank.gpu for rank in ranks if rank.host == f"node{number + 1}" and rank.gpu]
    return NodeNow(
        number,
        f"node{number + 1}",
        NOW.timestamp() - 2,
        cpus=32,
        cpu=12.4 + number,
        memory=38 * GIB,
        memory_limit=256 * GIB,
        net_in=2.13e9,
        net_out=2.09e9,
        disk_read=3.2e8,
        disk_write=4.1e6,
        gpus=here if gpus else (),
    )


def _entry(number: int, outcome: str, first: int, last: int) -> AttemptSummary:
    attempt = Attempt(RUN.path / "attempts" / str(number), number, "slurm", "4711")
    return AttemptSummary(attempt, outcome, first, last, last // 1000 * 1000, 3700.0, 3400.0, True)
