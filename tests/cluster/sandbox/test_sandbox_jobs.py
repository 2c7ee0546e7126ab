"""Jobs on a running sandbox: shape, GPUs, requeue, preemption, a node that dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.cluster.sandbox import Sandbox
from allranks.cluster.sandbox.testing import missing_reason, sandbox_for_tests
from command_rig import until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "all programs are here"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    # Quick to notice a dead node; too quick for a busy real cluster.
    quick = {"SlurmdTimeout": "5", "MessageTimeout": "3"}
    with sandbox_for_tests(nodes=3, settings=quick, grace=4) as sandbox:
        yield sandbox


def submit(cluster: Sandbox, folder: Path, script: str, *options: str) -> tuple[str, Path]:
    """The job's id and the file of its output."""
    path, output = folder / "job.sh", folder / "out"
    path.write_text("#!/bin/bash\n" + script)
    done = cluster.run(
        "sbatch", "--parsable", "--open-mode=append", f"--output={output}", *options, str(path)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), output


def state(cluster: Sandbox, job: str) -> str:
    text = cluster.run("scontrol", "show", "job", job).stdout
    found = re.search(r"JobState=(\w+)", text)
    return found.group(1) if found else ""


def read(output: Path) -> str:
    return output.read_text() if output.exists() else ""


def test_two_nodes_of_two_tasks(cluster: Sandbox, tmp_path: Path) -> None:
    shape = ("-N2", "--ntasks-per-node=2")
    script = "srun -l sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME'"
    job, output = submit(cluster, tmp_path, script, *shape)
    until(lambda: state(cluster, job) == "COMPLETED")
    assert sorted(read(output).splitlines()) == [
        "0: 0 node1",
        "1: 1 node1",
        "2: 2 node2",
        "3: 3 node2",
    ]


def test_each_node_has_its_name_and_knows_the_others(cluster: Sandbox) -> None:
    if cluster.record.isolation == "plain":
        pytest.skip(f"nodes share this machine: {cluster.record.reason}")
    done = cluster.run("srun", "-N3", "sh", "-c", "hostname; getent hosts node3")
    words = done.stdout.split()
    assert {"node1", "node2", "node3", cluster.record.block.address(3)} == set(words)


@pytest.mark.parametrize(
    ("options", "devices"),
    [(["--gres=gpu:a100:2"], {"0,1"}), (["-n2", "--gpus-per-task=1"], {"0", "1"})],
)
def test_gpus_are_given_out(cluster: Sandbox, options: list[str], devices: set[str]) -> None:
    done = cluster.run("srun", "-N1", *options, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert set(done.stdout.split()) == devices, done.stderr


def test_what_is_not_there_is_refused(cluster: Sandbox) -> None:
    done = cluster.run("srun", "-N1", "--gres=gpu:h100:1", "true")
    assert "Requested node configuration is not available" in done.stderr


def test_a_signal_then_requeue(cluster: Sandbox, tmp_path: Path) -> None:
    script = (
        'echo life ${SLURM_RESTART_COUNT:-0}\n[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1\necho ready\nsleep 60 & wait; wait\n"
    )
    job, output = submit(cluster, tmp_path, script, "-N1")
    until(lambda: "ready" in read(output))
    assert cluster.run("scancel", "--batch", "--signal=USR1", job).returncode == 0
    until(lambda: "life 1" in read(output))
    until(lambda: state(cluster, job) == "COMPLETED")


def test_main_preempts_low(cluster: Sandbox, tmp_path: Path) -> None:
    script = (
        "trap 'echo USR1' USR1\necho life ${SLURM_RESTART_COUNT:-0}\n"
        "for i in {1..600}; do sleep .1; done\n"
    )
    options = ("-plow", "-N3", "--exclusive", "--signal=B:USR1@30")
    job, output = submit(cluster, tmp_path, script, *options)
    until(lambda: "life 0" in read(output))
    assert cluster.run("srun", "-N3", "--exclusive", "true", timeout=90).returncode == 0
    until(lambda: "life 1" in read(output))
    assert "USR1" in read(output)
    cluster.run("scancel", job)


def test_a_node_that_dies_and_returns(cluster: Sandbox, tmp_path: Path) -> None:
    until(lambda: "node" not in cluster.run("squeue", "-h").stdout)
    script = (
        "echo life ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST; srun sh -c 'echo up; sleep 120'"
    )
    job, output = submit(cluster, tmp_path, script, "-N2")
    # Both tasks are up: an srun that cannot start one ends the job before Slurm misses the node.
    until(lambda: "life 0 node[1-2]" in read(output) and read(output).count("up\n") == 2)
    assert cluster.kill_node("node2")
    assert not cluster.kill_node("node2")
    assert [node.on for node in cluster.status().nodes] == [True, False, True]
    until(lambda: "life 1 node[1,3]" in read(output), 90)
    assert cluster.start_node("node2")
    assert not cluster.start_node("node2")
    assert cluster.status().nodes[1].state == "idle"
    assert cluster.run("srun", "-wnode2", "true").returncode == 0
    cluster.run("scancel", job)
