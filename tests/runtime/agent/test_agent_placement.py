"""Which ranks are mine: by options, by the Slurm step, or alone."""

from __future__ import annotations

import json
import socket

import pytest
from agent_rig import Rig

from allranks.errors import WorldError
from allranks.runtime.agent.rank_environment import place_node

STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1",
        "MASTER_ADDR": "n1", "MASTER_PORT": "20001"}  # fmt: skip


def test_alone() -> None:
    first, second = place_node(2, None, None, {})
    assert (first.rank, second.rank, first.size, first.master_addr) == (0, 1, 2, "127.0.0.1")
    assert 20000 <= (first.master_port or 0) < 32768
    assert first.master_port == second.master_port


def test_in_a_step() -> None:
    place = place_node(4, None, None, STEP)[3]
    assert (place.rank, place.size, place.local_rank, place.node_rank) == (7, 8, 3, 1)
    assert place.environment()["MASTER_PORT"] == "20001"


@pytest.mark.parametrize("step", ["", "4294967291", "4294967290"])
def test_the_batch_script_is_no_step(step: str) -> None:
    assert place_node(1, None, None, {**STEP, "SLURM_STEP_ID": step})[0].nodes == 1


def test_options_go_first() -> None:
    assert place_node(1, 3, 2, STEP)[0].rank == 2


@pytest.mark.parametrize(
    ("nnodes", "node", "env", "message"),
    [
        (2, 0, {}, "2 nodes, but MASTER_ADDR and MASTER_PORT is not set"),
        (2, 0, {"MASTER_ADDR": "n1"}, "2 nodes, but MASTER_PORT is not set"),
        (2, 2, STEP, "Node rank 2 is not possible with 2 nodes"),
        (1, 0, {"MASTER_PORT": "x"}, "MASTER_PORT=x is not a port"),
    ],
)
def test_what_cannot_be(nnodes: int, node: int, env: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError, match=message):
        place_node(1, nnodes, node, env)


def test_errors_on_the_command_line(rig: Rig) -> None:
    result = rig.run("ranks", "--nprocs", "1", "--nnodes", "2", "--", "true")
    assert result.returncode == 3
    assert result.stderr.startswith("allranks: 2 nodes, but")
    assert rig.run("ranks", "--nprocs", "1").returncode == 2
    assert rig.run("ranks", "--", "true").returncode == 2


SHOW = """
    import json, os
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT"
    values = [os.environ.get(n) for n in [*names.split(), "OMP_NUM_THREADS"]]
    print(json.dumps(values), flush=True)
"""


def test_one_rank_under_another_launcher(rig: Rig) -> None:
    import sys

    path = rig.script(SHOW + "    import sys; print(sys.argv[1:])\n")
    env = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    env |= {"NODE_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "20007", "OMP_NUM_THREADS": "5"}
    words = ("rank", "--local-rank-arg", "local-rank", "--", sys.executable, path, "x")
    result = rig.run(*words, **env)
    assert result.returncode == 0, result.stderr
    shown, argv = (line.removeprefix("[3] ") for line in result.stdout.splitlines())
    assert json.loads(shown) == ["3", "1", "4", "2", "1", "h", "20007", "5"]
    assert argv == "['x', '--local-rank=1']"
    failed = rig.run("rank", "--", "sh", "-c", "echo bad >&2; exit 6", **env)
    assert failed.returncode == 6
    head = f"allranks: rank 3 (local rank 1) on {socket.gethostname()}, exit code 6, "
    assert failed.stderr.splitlines() == ["[3] bad", f"{head}0 s after start"]


def test_stdin_of_a_lone_rank(rig: Rig) -> None:
    import subprocess

    from agent_rig import AGENT

    done = subprocess.run(
        [*AGENT, "rank", "--", "cat"],
        input="text",
        capture_output=True,
        text=True,
        env=rig.env,
        check=True,
    )
    assert done.stdout == "text"


def test_tensorflow_gets_its_variable(rig: Rig, mode: str) -> None:
    path = rig.script("import os; print(os.environ['TF_CONFIG'])")
    result = rig.ranks(mode, 2, path, ALLRANKS_FRAMEWORK="tensorflow")
    assert result.returncode == 0, result.stderr
    assert json.loads(rig.said(1)[0])["task"] == {"type": "worker", "index": 1}


def test_binding_by_hand_reaches_the_rank(rig: Rig, mode: str) -> None:
    import os

    cpus = sorted(os.sched_getaffinity(0))
    path = rig.script(
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    )
    result = rig.ranks(mode, 2, path, ALLRANKS_BIND=f"{cpus[0]};{cpus[-1]}")
    assert result.returncode == 0
    assert (rig.said(0), rig.said(1)) == ([f"[{cpus[0]}] 1"], [f"[{cpus[-1]}] 1"])
