"""Real agents, runs and jobs: one file for each node, and nothing disturbed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allranks.runtime.telemetry.sampler import sample_here
from command_rig import Allranks, until

HOLD = """
import os, time
held = bytearray(b"x") * (100 << 20)
end = time.monotonic() + 1.6
while time.monotonic() < end:
    time.sleep(0.01)
print("sampled", os.environ.get("ALLRANKS_SAMPLED"))
print("below the task", os.environ.get("SLURM_TASK_PID") == str(os.getppid()))
"""
MB = 1 << 20


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def node_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*/attempts/1/nodes/*"))


def _left_running(attempt: Path) -> list[str]:
    wanted = f"ALLRANKS_ATTEMPT_DIR={attempt}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:  # another user's, or gone
            continue
    return found


def test_a_run_of_two_ranks(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    done = allranks("run", "--nprocs", "2", "hold.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sampled 1") == 2
    (file,) = node_files(tmp_path)
    assert file.name == "node-00000.jsonl"
    first, *found = read(file)
    assert first["kind"] == "node"
    assert len(found) >= 2  # soon after the start, and the end
    times = [sample["time"] for sample in found]
    assert times == sorted(times)
    assert all(sample["seconds"] > 0 for sample in found)
    # Forked ranks share Python itself; what they hold counts for both, at the end as well.
    assert all(200 * MB < sample["memory"] < 300 * MB for sample in found)
    assert not _left_running(file.parent.parent)


def test_it_can_be_switched_off(allranks: Allranks, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("print('here')\n")
    done = allranks("run", "--nprocs", "1", "quick.py", ALLRANKS_SAMPLE="off")
    assert (done.returncode, done.stdout) == (0, "here\n")
    assert not node_files(tmp_path)


@pytest.fixture
def agent_env(library: Path, tmp_path: Path, clean_env: dict[str, str]) -> dict[str, str]:
    """Two GPUs by the library that stands for the driver's; the local rank is 1 of 2."""
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    meeting = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"}
    return {
        **clean_env,
        **ranks,
        **meeting,
        "FAKE_NVML": str(tmp_path),
        "LD_LIBRARY_PATH": str(library.parent),
        "ALLRANKS_ATTEMPT_DIR": str(tmp_path / "attempt"),
        "ALLRANKS_SAMPLE": "0.3",
    }


def _agent(env: dict[str, str], seconds: float = 1.0, **changes: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "allranks.runtime.agent", "rank", "--", "sleep", str(seconds)]
    return subprocess.Popen(
        command, env={**env, **changes}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_agent_of_another_rank_writes_the_gpus_that_it_alone_sees(
    agent_env: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "attempt" / "nodes" / "node-00000.1.jsonl"
    agents = [
        _agent(agent_env, 60, RANK="0", LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="1"),
        _agent(agent_env, 60, CUDA_VISIBLE_DEVICES="0"),
    ]
    until(lambda: file.exists() and len(read(file)) > 1)
    for agent in agents:
        agent.terminate()
        agent.communicate(timeout=60)
    first, *found = read(file)
    assert set(first) == {"kind", "time", "node", "host", "gpus"}
    assert [gpu["uuid"] for gpu in first["gpus"]] == ["GPU-aaaa-1111"]
    assert set(found[0]) == {"kind", "time", "seconds", "gpus"}
    expected = {"gpu": 0, "use": 0.97, "memory": 600, "power": 650.5, "temperature": 61}
    assert found[0]["gpus"] == [expected]


def test_agents_whose_ranks_share_gpus_leave_them_to_the_first(
    agent_env: dict[str, str], tmp_path: Path
) -> None:
    ranks = {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}  # on two GPUs
    first = _agent(agent_env, 2.0, RANK="0", LOCAL_RANK="0", **ranks)
    other = _agent(agent_env, 2.0, **ranks)
    for agent in (first, other):
        assert agent.communicate(timeout=60) == ("", "")
    (file,) = (tmp_path / "attempt" / "nodes").iterdir()
    assert file.name == "node-00000.jsonl"


def test_the_first_ranks_agent_writes_the_node_with_its_gpus(
    agent_env: dict[str, str], tmp_path: Path
) -> None:
    agent = _agent(agent_env, RANK="0", LOCAL_RANK="0")
    assert agent.communicate(timeout=60) == ("", "")
    (file,) = (tmp_path / "attempt" / "nodes").iterdir()
    found = read(file)
    facts = [line for line in found if line["kind"] == "node"][-1]
    assert file.name == "node-00000.jsonl"
    assert [gpu["gpu"] for gpu in facts["gpus"]] == [0, 1]
    assert facts["cpus"] >= 1
    assert [gpu["gpu"] for gpu in found[-1]["gpus"]] == [0, 1]
    assert "use" not in found[-1]["gpus"][1]


def test_what_it_has_to_say_at_the_end_is_heard(agent_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "nodes").write_text("not a folder")
    agent = _agent(agent_env, 1.0, RANK="0", LOCAL_RANK="0", ALLRANKS_SAMPLE="3600")
    out, err = agent.communicate(timeout=60)
    assert (agent.returncode, out) == (0, "")
    path = tmp_path / "attempt" / "nodes" / "node-00000.jsonl"
    assert err == f"allranks: cannot write {path}: File exists\n"


def test_a_gpu_that_is_lost_is_told_though_the_ranks_are_silent(
    agent_env: dict[str, str], tmp_path: Path
) -> None:
    agent = _agent(agent_env, 60, RANK="0", LOCAL_RANK="0")
    until((tmp_path / "attempt" / "nodes" / "node-00000.jsonl").exists)
    (tmp_path / "lost").touch()
    assert agent.stderr is not None
    told, _, _ = select.select([agent.stderr], [], [], 20)
    still_runs = agent.poll() is None
    agent.terminate()
    _, err = agent.communicate(timeout=60)
    assert told
    assert still_runs
    assert err.startswith("allranks: GPU 0 (NVIDIA H200): GPU is lost; no more samples of it\n")


def test_an_agent_ends_though_the_driver_hangs(agent_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    agent = _agent(agent_env, RANK="0", LOCAL_RANK="0")
    assert agent.communicate(timeout=60) == ("", "")
    assert agent.returncode == 0
    (file,) = (tmp_path / "attempt" / "nodes").iterdir()
    assert read(file)[-1]["gpus"] == []


def test_every_thread_of_an_agent_leaves_signals_to_its_loop(agent_env: dict[str, str]) -> None:
    from allranks.runtime.agent.supervisor import HANDLED

    agent = _agent(agent_env, 30, RANK="0", LOCAL_RANK="0")
    tasks = Path(f"/proc/{agent.pid}/task")
    until(lambda: len(list(tasks.iterdir())) == 3)  # its loop, the sampler, the GPUs
    for task in tasks.iterdir():
        text = (task / "status").read_text()
        blocked = int(text.partition("SigBlk:")[2].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in HANDLED)
    os.kill(agent.pid, 15)
    agent.communicate(timeout=60)
    assert agent.returncode == 143


@pytest.mark.torch
def test_a_trainer_that_nobody_started_samples_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    import torch

    from allranks import TrainConfig, Trainer
    from allranks.train.callbacks.base import Callback

    monkeypatch.chdir(tmp_path)
    for name in ("ALLRANKS_RUN_DIR", "ALLRANKS_ATTEMPT_DIR", "ALLRANKS_SAMPLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    config = TrainConfig(epochs=1, progress=False, summary=False, verbose=False)

    class Slow(Callback):
        def on_fit_start(self, trainer: Any) -> None:
            until(lambda: bool(node_files(tmp_path)))

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(model, optimizer, config, callbacks=[Slow()])
    trainer.fit(torch.utils.data.DataLoader(data, batch_size=2))
    (file,) = node_files(tmp_path)
    first, *found = read(file)
    assert (file.name, first["kind"]) == ("node-00000.jsonl", "node")
    assert found[-1]["memory"] > 50 * MB
    assert "allranks sampler" not in {thread.name for thread in threading.enumerate()}


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "nodes").write_text("not a folder")
    reported: list[str] = []
    with sample_here(
        lambda: attempt, 1, 0, 1, reported.append, env={**os.environ, "ALLRANKS_SAMPLE": "0.2s"}
    ):
        until(lambda: bool(reported))
    path = attempt / "nodes" / "node-00001.jsonl"
    assert reported == [f"cannot write {path}: File exists"]


@pytest.mark.slurm
def test_two_nodes_of_a_job_write_a_file_each(slurm: Allranks, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    size = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "2", "--time", "5m"]
    done = slurm("submit", *size, "--launcher", "srun", "--follow", "hold.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("below the task True") == 4  # so that the agents know their step
    files = node_files(tmp_path)
    assert [file.name for file in files] == ["node-00000.jsonl", "node-00001.jsonl"]
    for number, file in enumerate(files):
        first, *found = read(file)
        assert (first["node"], first["host"]) == (number, f"node{number + 1}")
        # Each rank has an agent of its own; the first one's counts both, and not the other node's.
        assert 200 * MB < max(sample["memory"] for sample in found) < 350 * MB
