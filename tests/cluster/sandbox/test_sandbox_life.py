"""Starting and stopping: several at once, after crashes, in every isolation, nothing left."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import allranks
from allranks.cluster.sandbox import Sandbox, SandboxConfig
from allranks.cluster.sandbox import directories as layout
from allranks.cluster.sandbox import sandbox_processes as processes
from allranks.cluster.sandbox.testing import missing_reason, sandbox_for_tests
from allranks.errors import SandboxError
from command_rig import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "all programs are here"),
]
NAME = f"life-{os.getpid()}"
SOURCE = Path(allranks.__file__).parent.parent


def assert_nothing_left(sandbox: Sandbox) -> None:
    assert processes.find(sandbox.layout) == []
    assert not sandbox.directory.exists()
    assert not (layout.home() / sandbox.name).is_symlink()
    assert str(sandbox.directory) not in Path("/proc/mounts").read_text()
    assert f"arsb{sandbox.record.block.number}" not in [
        each.name for each in Path("/sys/class/net").iterdir()
    ]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"isolation": "plain"}, id="plain"),
        pytest.param({"isolation": "hosts"}, id="hosts"),
        pytest.param({"isolation": "network"}, id="network"),
        pytest.param({"gpus": 0, "nodes": 1}, id="small"),
        pytest.param({"gpu_env": "amd", "gpu_type": ""}, id="amd"),
    ],
)
def test_up_run_down(config: dict[str, Any]) -> None:
    if config.get("isolation") == "network" and os.geteuid() != 0:
        pytest.skip("only root makes networks")
    with sandbox_for_tests(**config) as sandbox:
        nodes = len(sandbox.nodes)
        done = sandbox.run("srun", f"-N{nodes}", "sh", "-c", "echo $SLURMD_NODENAME; hostname -I")
        assert set(sandbox.nodes) <= set(done.stdout.split()), done.stderr
        if config.get("isolation") == "network":
            assert sandbox.record.block.address(2) in done.stdout
        if config.get("gpu_env") == "amd":
            told = sandbox.run("srun", "--gres=gpu:2", "sh", "-c", "echo $ROCR_VISIBLE_DEVICES")
            assert told.stdout.strip() == "0,1"
        sandbox.run("sbatch", f"-N{nodes}", "-o/dev/null", "--wrap", "srun sleep 300 & sleep 300")
    assert_nothing_left(sandbox)
    sandbox.down()


def test_a_node_dies_whole_even_when_it_shares_the_machine() -> None:
    with sandbox_for_tests(isolation="plain") as sandbox:
        wrap = "srun env -i sh -c 'setsid sleep 321 & exec sleep 321'"
        sandbox.run("sbatch", "-N2", "-n2", "-o/dev/null", "--wrap", wrap)
        until(lambda: len(processes.find(sandbox.layout, "node2")) >= 4)
        before = processes.find(sandbox.layout, "node2")
        sandbox.kill_node("node2")
        assert not [member for member in before if processes.alive(member.pid)]
        assert processes.find(sandbox.layout, "node1")


def test_accounting() -> None:
    if reason := missing_reason(accounting=True):
        pytest.skip(reason)
    with sandbox_for_tests(accounting=True) as sandbox:
        assert sandbox.status().daemons["slurmdbd"]
        sandbox.run("srun", "-N2", "--gres=gpu:2", "--job-name=counted", "true")
        words = ("sacct", "-nPX", "-ojobname,state,alloctres")
        counted = r"counted\|COMPLETED\|.*gres/gpu=4"
        until(lambda: re.search(counted, sandbox.run(*words).stdout))
    assert_nothing_left(sandbox)


def test_several_start_at_the_same_time() -> None:
    made: list[Sandbox] = []
    starts = [
        threading.Thread(target=lambda k=k: made.append(Sandbox.up(name=f"{NAME}-{k}")))
        for k in range(3)
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    try:
        assert len({sandbox.record.port for sandbox in made}) == 3
        for sandbox in made:
            assert sandbox.run("srun", "-N2", "true").returncode == 0
        made[0].down()
        assert made[1].run("srun", "-N2", "true").returncode == 0
    finally:
        for sandbox in made:
            sandbox.down()
            assert_nothing_left(sandbox)


def test_a_name_in_use_is_refused_unless_it_is_to_be_replaced() -> None:
    with Sandbox.up(name=NAME) as first:
        with pytest.raises(SandboxError, match="is up already"):
            Sandbox.up(name=NAME)
        with Sandbox.up(name=NAME, config=SandboxConfig(nodes=1), replace=True) as second:
            assert second.nodes == ["node1"]
            assert Sandbox.open(NAME).nodes == ["node1"]
        assert_nothing_left(first)


def test_a_directory_of_ones_own() -> None:
    directory = Path(f"/tmp/ar-{os.getpid()}")
    with Sandbox.up(directory, name=NAME) as sandbox:
        assert sandbox.directory == directory
        assert Sandbox.open(NAME).directory == Sandbox.open(directory).directory == directory
    assert_nothing_left(sandbox)


def test_down_after_daemons_were_killed_and_files_were_lost() -> None:
    sandbox = Sandbox.up(name=NAME)
    for role in ("slurmctld", "munged"):
        processes.kill_all(sandbox.layout, role)
    assert not sandbox.status().running
    sandbox.kill_node("node1")
    with pytest.raises(SandboxError, match="--replace"):
        sandbox.start_node("node1")
    shutil.rmtree(sandbox.directory / "run")
    (sandbox.directory / "sandbox.json").unlink()
    Sandbox.open(NAME).down()
    assert_nothing_left(sandbox)


def test_what_a_killed_start_left_is_cleared_by_the_next() -> None:
    code = f"from allranks.cluster.sandbox import Sandbox; Sandbox.up(name={NAME!r})"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as child:
        until((layout.home() / NAME / "log/slurmctld.out").exists)
        child.send_signal(signal.SIGKILL)
    with Sandbox.up(name=NAME, replace=True) as sandbox:
        assert sandbox.run("srun", "-N2", "true").returncode == 0
    assert_nothing_left(sandbox)


def test_a_start_that_fails_tells_why_and_leaves_nothing() -> None:
    with pytest.raises(SandboxError) as caught:
        Sandbox.up(name=NAME, config=SandboxConfig(settings={"SelectType": "select/nonsense"}))
    assert "slurmctld exited while starting" in str(caught.value)
    assert "select/nonsense" in str(caught.value)
    assert not (layout.home() / NAME).exists()


def test_daemons_hold_nothing_of_the_callers() -> None:
    """A pipe that a daemon kept open would make this wait for ever."""
    code = f"from allranks.cluster.sandbox import Sandbox; Sandbox.up(name={NAME!r}); print('up')"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    with Sandbox.open(NAME) as sandbox:
        assert done.stdout == "up\n", done.stderr
        assert sandbox.status().running


def test_another_clusters_variables_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    with sandbox_for_tests(nodes=1) as sandbox:
        done = sandbox.run("sh", "-c", "srun sh -c 'echo $SLURM_JOB_ID'")
        assert done.stdout.strip() not in ("", "77"), done.stderr


def test_as_an_ordinary_user() -> None:
    """Debian's own Python, since the one that runs the tests may lie in root's home."""
    python = "/usr/bin/python3"
    users = [user.pw_uid for user in pwd.getpwall() if 1000 <= user.pw_uid < 60000]
    if os.geteuid() != 0 or not users or not Path(python).exists() or not shutil.which("setpriv"):
        pytest.skip("needs root, an ordinary user, /usr/bin/python3 and setpriv")
    code = (
        "import json; from allranks.cluster.sandbox.testing import sandbox_for_tests\n"
        "with sandbox_for_tests() as s:\n"
        "  done = s.run('srun', '-N2', '--gres=gpu:1', 'id', '-u')\n"
        "  killed = s.kill_node('node2'), s.start_node('node2')\n"
        "  print(json.dumps([done.stdout.split(), killed, str(s.directory)]))\n"
    )
    become = ["setpriv", f"--reuid={users[0]}", f"--regid={users[0]}", "--clear-groups"]
    environment = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    command = [*become, python, "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/tmp")
    assert done.returncode == 0, done.stderr
    ids, killed, directory = json.loads(done.stdout)
    assert ids == [str(users[0])] * 2
    assert killed == [True, True]
    assert not Path(directory).exists()
