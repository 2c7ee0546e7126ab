"""A real job on two nodes, looked at while it runs and after."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.observe.view.heatmap_data import heatmap, heatmap_kinds
from allranks.observe.view.run_source import RunSource
from allranks.observe.view.run_view import view_run
from allranks.observe.view.view_json import view_record
from allranks.runs import Run
from command_rig import Allranks, until

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

TRAIN = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
from allranks import TrainConfig, Trainer

torch.set_num_threads(1)
data = TensorDataset(torch.rand(256, 4), torch.rand(256, 1))

class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02 + 0.02 * (torch.distributed.get_rank() == 1))
        return super().forward(x)

model = Slow(4, 1)
config = TrainConfig(epochs=4, log_every=4, checkpoint_every=2)
Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config, loss_fn="mse").fit(
    DataLoader(data, batch_size=8)
)
"""


def test_two_nodes(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm_env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--nodes", "2", "--nprocs", "2", "--cpus-per-task", "1", "--time", "3m", "train.py")
    done = slurm("submit", "--json", *words)
    assert done.returncode == 0, done.stderr
    run = Run(json.loads(done.stdout)["folder"])
    source = RunSource(run)
    seen: list[JobState] = []

    def ended() -> bool:
        source.refresh()
        found = view_run(source)
        json.dumps(view_record(found), allow_nan=False)
        seen.append(found.status.state)
        return found.status.state.ended

    until(ended)
    assert seen[-1] is JobState.COMPLETED
    assert JobState.RUNNING in seen
    source.refresh()
    found = view_run(source)
    assert found.progress.share == 1.0
    assert [node.host for node in found.nodes] == ["node1", "node2"]
    assert all(node.cpu is not None and node.memory for node in found.nodes)
    assert [rank.host for rank in found.ranks] == ["node1", "node2"]
    assert [rank.rank for rank in found.ranks if rank.straggler] == [1]
    assert found.phases["communication"] > found.phases["optimizer"]
    assert set(heatmap_kinds(source)) >= {"cpu", "step", "wait"}
    waits = heatmap(source, "wait")
    assert sum(waits.values[0]) > sum(waits.values[1])
    assert set(run.metrics().columns("nodes")["host"]) == {"node1", "node2"}


def test_the_tasks_of_an_array(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fails while two run and one waits: each has its own state, those that began are exported."""
    for name, value in slurm_env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "task.py").write_text(
        "import os, pathlib, sys, time\n"
        "if os.environ['SLURM_ARRAY_TASK_ID'] == '4': sys.exit(3)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.2)\n"
    )
    done = slurm("submit", "--json", "-t", "5m", "--array", "3-6%2", "task.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    run, job = Run(told["folder"]), told["job_id"]
    until(lambda: _ended(run) == 1 and len(run.attempts) == 3)
    shown = slurm("top", "--once", job).stdout.splitlines()
    assert shown[0].startswith(f"{run.id}  task 5  running")
    assert f"task 4 did not finish: allranks top {job}_4" in shown[1]
    failed = json.loads(slurm("top", "--json", f"{job}_4").stdout)
    assert (failed["task"], failed["status"]["state"], failed["status"]["exit_code"]) == (
        "4",
        "FAILED",
        3,
    )
    waits = slurm("top", "--once", f"{job}_6").stdout.splitlines()
    assert waits[0].startswith(f"{run.id}  task 6  pending")
    assert waits[1].startswith(f"waiting: {pending_reason_text('JobArrayTaskLimit')}"[:80])
    text = slurm("export", "prometheus", run.id).stdout
    for task, state in (("3", "running"), ("4", "failed")):
        labels = f'run="{run.id}",job_id="{job}",task="{task}",state="{state}"'
        assert f"allranks_run_state{{{labels}}} 1\n" in text
    for task in ("5", "6"):  # where 5 was, there is room for 6
        kill = ["scancel", "--full", "--signal=KILL", f"{job}_{task}"]
        subprocess.run(kill, env=slurm_env, check=True)
        until(lambda: len(run.attempts) == 4)
    until(lambda: f"{run.id}  task 3  running" in slurm("top", "--once", job).stdout)
    assert f"tasks 4, 5, 6 did not finish: allranks top {job}_4" in slurm("top", job).stdout
    (tmp_path / "go").touch()
    until(lambda: _ended(run) == 2)


def _ended(run: Run) -> int:
    return sum(bool(attempt.outcome) for attempt in run.attempts)
