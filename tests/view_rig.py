"""Whole run folders with believable numbers, for everything that reads runs.

``make_run`` writes what the command, the agent and a Trainer leave behind; ``grow`` adds windows to a
run that is not finished, as a living one does. The numbers are the same at every call: only the times
move, since an unfinished run has to look alive.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.observe.view.model import RunView
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import view_record
from allranks.runs import Run
from allranks.runs.run_process import record_process
from allranks.schedulers.run_state import RunStatus
from view_numbers import (
    GIB,
    SAVE_EVERY,
    Life,
    Shape,
    epoch_lines,
    lives_of,
    loss_at,
    sample_texts,
    sample_times,
    train_line,
)

SCRIPT = '''"""Trains a small model."""

import torch
from allranks import TrainConfig, Trainer

model = torch.nn.Linear(512, 512)
config = TrainConfig(epochs=10, checkpoint_every=100)
Trainer(model, torch.optim.AdamW(model.parameters()), config).fit(...)
'''
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    Trainer(model, torch.optim.AdamW(model.parameters()), config).fit(...)
  File "train.py", line 31, in training_step
    loss = self.loss(self.model(x), y)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of \
139.80 GiB of which 1.12 GiB is free."""


def make_run(
    root: Path,
    name: str = "train",
    *,
    ranks: int = 4,
    gpus_per_node: int = 4,
    windows: int = 50,
    steps_per_window: int = 10,
    attempts: int = 1,
    gpus: bool = True,
    slow_rank: int | None = None,
    finished: bool = True,
    failed: bool = False,
    job_id: str = "",
    end: float | None = None,
) -> Run:
    """A run folder below ``root``; with ``failed`` rank 2 (or the last) runs out of memory at its end.

    ``windows`` are those that count, over all attempts; each attempt but the last did some more that
    were lost. ``end``: when the last one was written, in seconds since 1970; now unless it is given.
    Without a job id it is a run of this machine; unfinished, it lives in this very process.
    """
    shape = Shape(ranks, gpus_per_node, steps_per_window, gpus, slow_rank, finished, windows)
    end = time.time() - (30.0 if finished or failed else 0.2) if end is None else end
    lives = list(lives_of(shape, windows, attempts, end))
    run = _make_folder(root, name, shape, job_id, lives[0].begin - 40, attempts)
    for life in lives:
        last = life.number == attempts
        over = "failed" if failed else "finished" if finished else ""
        _write_life(run, shape, replace(life, outcome=over if last else "timed out"), job_id)
    if not finished and not failed and not job_id:
        record_process(run)
    if finished and not failed:
        (run.path / "finished").touch()
    return Run.open(run.path)


def make_array(path: Path, tasks: dict[str, str]) -> Run:
    """A job array, a task of which has done ten steps more than the one before; task → how it ended."""
    about = {"name": "sweep", "array": "0-9", "scheduler": "slurm", "job_ids": ["4711"]}
    (path / "run.json").write_text(json.dumps(about))
    for number, (task, outcome) in enumerate(tasks.items(), 1):
        for folder in (f"attempts/{number}", f"tasks/{task}"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        start = {"array_task": task, "start": _stamp(time.time() - 60), "hosts": [f"node{number}"]}
        end = {
            "exit_code": int(outcome != "finished"),
            "outcome": outcome,
            "end": _stamp(time.time()),
        }
        (path / f"attempts/{number}/attempt.json").write_text(json.dumps(start))
        if outcome:
            (path / f"attempts/{number}/end.json").write_text(json.dumps(end))
        line = {"kind": "train", "step": number * 10, "time": time.time(), "train_loss": 0.5}
        (path / f"tasks/{task}/metrics.jsonl").write_text(json.dumps(line) + "\n")
    return Run.open(path)


def look(run: Run, status: RunStatus | None = None, task: str | None = None) -> RunView:
    """One snapshot of a run, which is also JSON."""
    source = RunSource(run, task)
    source.refresh()
    snapshot = view_run(source, status)
    json.dumps(view_record(snapshot), allow_nan=False)
    return snapshot


def grow(run: Run, windows: int = 1) -> None:
    """Add windows to the last attempt, up to now; the run has to be an unfinished one."""
    recipe = json.loads((run.path / ".recipe.json").read_text())
    shape = Shape(**recipe["shape"])
    begun = recipe["lives"][-1]
    done = begun["windows"]
    life = Life(**begun)
    longer = replace(life, windows=done + windows)
    shift = time.time() - (longer.begin + longer.seconds(shape))
    _append_windows(run, shape, longer, done, shift)
    _append_samples(run, shape, longer, life.seconds(shape), shift)
    _write_progress(run, shape, longer, shift)
    recipe["lives"][-1] = begun | {"windows": done + windows}
    (run.path / ".recipe.json").write_text(json.dumps(recipe))


def _make_folder(
    root: Path, name: str, shape: Shape, job_id: str, created: float, attempts: int
) -> Run:
    """The folder as ``submit`` leaves it. Not in the user's index: a test's runs are no one's."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created))
    path = Path(root).absolute() / f"{name}-{stamp}"
    while path.exists():
        path = path.with_name(path.name + "-2")
    (path / "code").mkdir(parents=True)
    (path / "code" / "train.py").write_text(SCRIPT)
    about = {
        "name": name,
        "id": path.name,
        "created": _stamp(created),
        "scheduler": "slurm" if job_id else "local",
        "job_ids": [job_id] if job_id else [],
        "cwd": "/home/you/project",
        "command": ["allranks", "submit" if job_id else "run", "train.py"],
    }
    (path / "run.json").write_text(json.dumps(about, indent=2))
    epochs = -(-shape.total_steps // shape.steps // 10)
    (path / "training.json").write_text(json.dumps({"epochs": epochs, "log_every": shape.steps}))
    _write_plan(path, name, shape, attempts > 1)
    return Run.open(path)


def _write_plan(path: Path, name: str, shape: Shape, requeue: bool) -> None:
    from allranks.job.fields import Job
    from allranks.job.plan_record import job_toml, plan_record
    from allranks.job.resolve import resolve
    from allranks.job.sbatch import render

    more: dict[str, Any] = {"gpus_per_node": shape.gpus_per_node} if shape.gpus else {}
    job = Job(
        str(path / "code" / "train.py"),
        name=name,
        nodes=shape.nodes,
        nprocs=shape.ranks,
        cpus_per_task=8,
        time="12h",
        requeue=requeue or None,
        **more,
    )
    plan = resolve(job, source="command line")
    (path / "plan.json").write_text(json.dumps(plan_record(plan), indent=2, default=str))
    (path / "job.toml").write_text(job_toml(plan))
    (path / "job.sh").write_text(
        render(plan, made_by="allranks submit train.py", run_dir=str(path))
    )


def _write_life(run: Run, shape: Shape, life: Life, job_id: str) -> None:
    folder = run.path / "attempts" / str(life.number)
    (folder / "ranks").mkdir(parents=True)
    (folder / "nodes").mkdir()
    start = life.begin - 12.0
    about = {
        "attempt": life.number,
        "scheduler": run.scheduler,
        "job_id": job_id,
        "restart": life.number - 1,
        "launcher": "srun" if job_id else "fork",
        "hosts": [_host(node, job_id) for node in range(shape.nodes)],
        "start": _stamp(start),
    }
    (folder / "attempt.json").write_text(json.dumps(about, indent=2))
    deadline = start + 12 * 3600
    (folder / "environment.txt").write_text(f"ALLRANKS_DEADLINE={deadline:.0f}\nRANK=0\n")
    _write_ranks(folder, shape, life, job_id)
    _note(run, shape, life, job_id)
    _append_windows(run, shape, life, life.first)
    _append_samples(run, shape, life, None)
    _write_progress(run, shape, life)
    _write_end(folder, shape, life, job_id)


def _note(run: Run, shape: Shape, life: Life, job_id: str) -> None:
    """What ``grow`` needs to go on."""
    path = run.path / ".recipe.json"
    known = json.loads(path.read_text()) if path.exists() else {"lives": []}
    known |= {"shape": {name: getattr(shape, name) for name in shape.__dataclass_fields__}}
    known |= {"job_id": job_id, "lives": [*known["lives"], life.__dict__]}
    path.write_text(json.dumps(known))


def _append_windows(run: Run, shape: Shape, life: Life, done: int, shift: float = 0.0) -> None:
    """Lines of metrics.jsonl and steps.jsonl; of windows that were lost beside the attempt."""
    when = life.begin + shift
    when += sum(shape.window_seconds(window) for window in range(life.first, done))
    metrics, undone, steps = [], [], []
    chance = random.Random(done * 7919 + life.number)
    for window in range(done, life.windows):
        pattern, step = shape.pattern(window), (window + 1) * shape.steps
        when += shape.window_seconds(window)
        head = f'{{"time": {when:.3f}, "step": {step}, "epoch": {1 + window // 10}'
        lines = [train_line(shape, head, step, pattern, chance)]
        if window % 10 == 9:
            lines += epoch_lines(head, step, chance)
        (metrics if window < life.kept or not life.outcome else undone).extend(lines)
        steps.append(f"{head}, {pattern.lists}}}\n")
    folder = run.path / "attempts" / str(life.number)
    _append(run.path / "metrics.jsonl", metrics)
    _append(folder / "undone-metrics.jsonl", undone)
    _append(folder / "steps.jsonl", steps)


def _write_ranks(folder: Path, shape: Shape, life: Life, job_id: str) -> None:
    for rank in range(shape.ranks):
        node, local = divmod(rank, shape.gpus_per_node)
        about = {
            "rank": rank,
            "local_rank": local,
            "node_rank": node,
            "world_size": shape.ranks,
            "host": _host(node, job_id),
            "pid": 4000 + rank,
            "cpus": f"{8 * local}-{8 * local + 7}",
            "devices": ",".join(map(str, range(shape.gpus_per_node))) if shape.gpus else "",
            "start": _stamp(life.begin - 10),
            "launcher": "srun" if job_id else "fork",
        }
        (folder / "ranks" / f"rank-{rank:05}.json").write_text(json.dumps(about, indent=1))
        log = _log(shape, life, rank) if rank < 16 else _beginning(life, rank)
        (folder / "ranks" / f"rank-{rank:05}.log").write_text("".join(log))


def _beginning(life: Life, rank: int) -> list[str]:
    return [
        f"{_stamp(life.begin - 9 + rank * 1e-3)} o rank {rank} is ready\n",
        f"{_stamp(life.begin - 8 + rank * 1e-3)} e UserWarning: the loader has fewer workers than CPUs\n",
    ]


def _log(shape: Shape, life: Life, rank: int) -> list[str]:
    """A few hundred lines at most; the last of a rank that failed are its traceback."""
    lines, when = _beginning(life, rank), life.begin
    for window in range(life.first, min(life.windows, life.first + 300)):
        when += shape.window_seconds(window)
        step = (window + 1) * shape.steps
        lines.append(f"{_stamp(when + rank * 1e-4)} o step {step} loss {loss_at(step):.4f}\n")
    if life.outcome == "failed" and rank == _failing(shape):
        after = life.begin + life.seconds(shape) + 0.5
        lines += [f"{_stamp(after)} e {line}\n" for line in TRACEBACK.splitlines()]
    return lines


def _failing(shape: Shape) -> int:
    return min(2, shape.ranks - 1)


def _append_samples(
    run: Run, shape: Shape, life: Life, since: float | None, shift: float = 0.0
) -> None:
    """The node files; ``since`` seconds after the beginning, or from their first line on."""
    folder = run.path / "attempts" / str(life.number) / "nodes"
    job_id = json.loads((run.path / ".recipe.json").read_text())["job_id"]
    length = life.seconds(shape)
    times = [each for each in sample_times(length) if since is None or each > since]
    for node in range(shape.nodes):
        lines = [_node_line(shape, node, life, job_id)] if since is None else []
        texts = sample_texts(shape, node)
        begin = life.begin + shift
        for place, each in enumerate(times):
            lines.append(f'{{"kind": "sample", "time": {begin + each:.3f}, {texts[place % 40]}')
        _append(folder / f"node-{node:05}.jsonl", lines)


def _node_line(shape: Shape, node: int, life: Life, job_id: str) -> str:
    gpus = [
        {
            "gpu": number,
            "name": "NVIDIA H200",
            "uuid": f"GPU-{node:08x}-{number:04x}-4b1d-9a55-0123456789ab",
            "memory_total": 150_000_000_000,
            "power_limit": 700.0,
        }
        for number in range(shape.gpus_per_node if shape.gpus else 0)
    ]
    about = {
        "kind": "node",
        "time": round(life.begin, 3),
        "node": node,
        "host": _host(node, job_id),
        "cpus": 8 * shape.gpus_per_node,
        "memory_limit": 256 * GIB,
        "memory_total": 512 * GIB,
        "gpus": gpus,
    }
    return json.dumps(about) + "\n"


def _write_progress(run: Run, shape: Shape, life: Life, shift: float = 0.0) -> None:
    saved = life.windows // SAVE_EVERY * SAVE_EVERY if not life.outcome else life.kept
    updated = life.begin + shift + life.seconds(shape)
    content = {
        "first_step": life.first * shape.steps,
        "step": life.windows * shape.steps,
        "began": life.begin,
        "updated": updated,
        "saved_step": saved * shape.steps or None,
        "saved_time": updated - 3,
        "save_seconds": 0.6,
        "total_steps": shape.total_steps,
        "outcome": {"": "running", "timed out": "interrupted"}.get(life.outcome, life.outcome),
        "reason": "",
        "fit": 1,
    }
    path = run.path / "attempts" / str(life.number) / "progress.json"
    path.write_text(json.dumps(content, indent=2))


def _write_end(folder: Path, shape: Shape, life: Life, job_id: str) -> None:
    if not life.outcome:
        return
    end = life.begin + life.seconds(shape) + 2
    ends = {
        "finished": {
            "exit_code": 0,
            "outcome": "finished",
            "reason": "it finished",
            "next": "done",
        },
        "failed": {"exit_code": 1, "outcome": "failed", "reason": "rank failed", "next": "stop"},
        "timed out": {
            "exit_code": 75,
            "outcome": "timed out",
            "reason": "the time limit came",
            "next": "requeue",
        },
    }
    (folder / "end.json").write_text(
        json.dumps(ends[life.outcome] | {"end": _stamp(end)}, indent=2)
    )
    if life.outcome == "failed":
        _write_failure(folder, shape, end - 1.5, job_id)


def _write_failure(folder: Path, shape: Shape, when: float, job_id: str) -> None:
    rank = _failing(shape)
    node, local = divmod(rank, shape.gpus_per_node)
    record = {
        "rank": rank,
        "local_rank": local,
        "host": _host(node, job_id),
        "pid": 4000 + rank,
        "exit_code": 1,
        "signal": None,
        "time": _stamp(when),
        "traceback": TRACEBACK,
        "command": ["python", "train.py"],
    }
    (folder / "failures").mkdir()
    (folder / "failures" / f"rank-{rank:05}.json").write_text(json.dumps(record, indent=1))


def _host(node: int, job_id: str) -> str:
    return f"node{node + 1}" if job_id or node else os.uname().nodename


def _append(path: Path, lines: list[str]) -> None:
    if lines:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(lines)


def _stamp(seconds: float) -> str:
    whole = int(seconds)
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{clock}.{int((seconds - whole) * 1e6):06d}Z"
