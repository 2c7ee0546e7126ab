"""The client against a real Slurm: pending to ended, arrays, requeue, accounting off and on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster.sandbox.testing import sandbox_for_tests
from allranks.cluster.slurm.accounting import job_usage
from allranks.cluster.slurm.commands import cluster_version
from allranks.cluster.slurm.job_states import JobState
from allranks.cluster.slurm.job_status import JobStatus
from allranks.cluster.slurm.job_usage import Usage
from allranks.cluster.slurm.jobs import cancel, job_status, list_jobs, requeue
from allranks.cluster.slurm.pending_reasons import pending_reason_text
from allranks.cluster.slurm.submission import submit
from allranks.errors import MissingDependencyError, SlurmError
from command_rig import runner, until

pytestmark = pytest.mark.slurm
Env = dict[str, str]


def cluster_env(**config: Any) -> Iterator[Env]:
    try:
        with sandbox_for_tests(nodes=2, **config) as sandbox:
            yield {**os.environ, **sandbox.env}
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def env() -> Iterator[Env]:
    yield from cluster_env()


@pytest.fixture(scope="module")
def env_accounting() -> Iterator[Env]:
    # A short MinJobAge, so that only sacct still knows an ended job.
    yield from cluster_env(accounting=True, settings={"MinJobAge": "2"})


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        path = tmp_path / "job.sh"
        path.write_text(f"#!/bin/bash\n{body}\n")
        return path

    return write


def wait(job: str, env: Env, done: Callable[[JobStatus], bool], seconds: float = 60) -> JobStatus:
    """Until the job is as asked; sees every state on the way."""
    end = time.monotonic() + seconds
    while True:
        status = job_status(job, env=env)[job]
        if done(status):
            return status
        assert time.monotonic() < end, status
        time.sleep(0.2)


def ended(status: JobStatus) -> bool:
    return status.state.ended


def running(status: JobStatus) -> bool:
    return status.state is JobState.RUNNING


def test_version(env: Env) -> None:
    assert cluster_version(env=env) >= (20, 2, 0)


def test_completed(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    job = submit(script("pwd"), options=["-N2", "-J", "a | b"], env=env, cwd=tmp_path)
    status = wait(job, env, ended)
    assert (status.state, status.exit_code, status.signal) == (JobState.COMPLETED, 0, None)
    assert (status.name, status.nodes, status.partition) == ("a | b", "node[1-2]", "main")
    assert status.start is not None
    assert status.end is not None
    assert abs(status.end.timestamp() - time.time()) < 120
    assert (tmp_path / f"slurm-{job}.out").read_text().strip() == str(tmp_path)


@pytest.mark.parametrize(("body", "code", "signal"), [("exit 3", 3, None), ("kill -9 $$", 137, 9)])
def test_failed(
    env: Env,
    script: Callable[[str], Path],
    tmp_path: Path,
    body: str,
    code: int,
    signal: int | None,
) -> None:
    job = submit(script(body), env=env, cwd=tmp_path)
    status = wait(job, env, ended)
    assert (status.state, status.exit_code, status.signal) == (JobState.FAILED, code, signal)


def test_running_pending_cancelled(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script("sleep 300")
    first = submit(path, options=["-N2", "--exclusive", "-t", "5"], env=env, cwd=tmp_path)
    status = wait(first, env, running)
    assert (status.nodes, status.time_limit, status.exit_code) == ("node[1-2]", 300, None)
    second = submit(path, options=["-N2", "--exclusive"], env=env, cwd=tmp_path)
    waiting = wait(second, env, lambda s: s.reason == "Resources" and bool(s.expected_start))
    assert waiting.state is JobState.PENDING
    assert "waiting for nodes" in pending_reason_text(waiting.reason)
    assert waiting.expected_start is not None
    assert status.start is not None
    assert 0 <= (waiting.expected_start - status.start).total_seconds() - 300 < 60
    held = submit(path, options=["--hold"], env=env, cwd=tmp_path)
    assert wait(held, env, lambda s: s.reason != "None").reason == "JobHeldUser"
    listed = {one.job_id: one.state for one in list_jobs(env=env)}
    assert listed == {first: JobState.RUNNING, second: JobState.PENDING, held: JobState.PENDING}
    cancel([first, second, held], env=env)
    for job in (first, second, held):
        status = wait(job, env, ended)
        assert status.state is JobState.CANCELLED
        assert status.exit_code != 0
    cancel([first], env=env)


def test_signal_to_the_script(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    body = "trap 'exit 9' USR1; echo ready > ready; while :; do sleep 0.1; done"
    job = submit(script(body), env=env, cwd=tmp_path)
    wait(job, env, lambda s: (tmp_path / "ready").exists())
    cancel(job, "USR1", batch=True, env=env)
    assert wait(job, env, ended).exit_code == 9


def test_array(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script(
        "test $SLURM_ARRAY_TASK_ID != 2 || exit 5; echo $SLURM_JOB_ID > $SLURM_ARRAY_TASK_ID"
    )
    job = submit(path, options=["--array=1-3"], env=env, cwd=tmp_path)
    whole = wait(job, env, ended)
    assert (whole.state, whole.exit_code) == (JobState.FAILED, 5)
    assert {task.job_id for task in whole.tasks} == {f"{job}_1", f"{job}_2", f"{job}_3"}
    raw = (tmp_path / "1").read_text().strip()
    found = job_status([f"{job}_1", f"{job}_2", raw, job], env=env)
    assert found[f"{job}_1"].state is found[raw].state is JobState.COMPLETED
    assert found[f"{job}_2"].exit_code == 5


def test_waiting_array_is_one_row(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    job = submit(script("true"), options=["--array=1-40%2", "--hold"], env=env, cwd=tmp_path)
    assert [one.job_id for one in list_jobs(env=env)] == [f"{job}_[1-40%2]"]
    assert len(job_status(job, env=env)[job].tasks) == 40
    assert job_status(f"{job}_7", env=env)[f"{job}_7"].state is JobState.PENDING
    cancel(f"{job}_7", env=env)
    # A task cancelled before it began leaves no trace but in accounting.
    assert job_status(f"{job}_7", env=env)[f"{job}_7"].state is JobState.UNKNOWN
    whole = job_status(job, env=env)[job]
    assert (whole.state, len(whole.tasks)) == (JobState.PENDING, 39)
    cancel(job, env=env)


def test_heterogeneous(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    options = ["-n1", ":", "-n1"]
    job = submit(script("sleep 300"), options=options, env=env, cwd=tmp_path)
    whole = wait(job, env, running)
    assert [task.job_id for task in sorted(whole.tasks, key=lambda t: t.job_id)] == [
        f"{job}+0",
        f"{job}+1",
    ]
    cancel(job, env=env)
    assert wait(job, env, ended).state is JobState.CANCELLED


def test_requeue_is_counted(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    job = submit(script("sleep 300"), env=env, cwd=tmp_path)
    assert wait(job, env, running).restarts == 0
    requeue(job, env=env)
    status = wait(job, env, lambda s: s.restarts == 1 and s.state is JobState.PENDING)
    assert "begin time" in pending_reason_text(status.reason)
    cancel(job, env=env)
    assert wait(job, env, ended).restarts == 1
    with pytest.raises(SlurmError, match="Invalid job id"):
        requeue("999999", env=env)


def test_refusals(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script("true")
    for options, words in [
        (["-p", "nope"], "no such partition"),
        (["--gres=gpu:h100:1"], "No node of the partition"),
        (["-t", "1:2:3:4:5"], "cannot read the time"),
    ]:
        with pytest.raises(SlurmError, match=words):
            submit(path, options=options, env=env, cwd=tmp_path)


def test_nested_submit(env: Env, script: Callable[[str], Path], tmp_path: Path) -> None:
    """The outer job has 2 tasks and a GPU; the inner one must see its own single task and none."""
    import sys

    inner = tmp_path / "inner.sh"
    inner.write_text(
        "#!/bin/bash\necho tasks=$SLURM_NTASKS rank=$RANK cuda=$CUDA_VISIBLE_DEVICES "
        "mem=$SLURM_MEM_PER_NODE steps=$(srun hostname | wc -l) > inner.txt\n"
    )
    outer = script(
        "export RANK=1\n"
        f"srun -n1 {sys.executable} -c 'from allranks.cluster.slurm.submission import submit; "
        f'print(submit("{inner}", options=["-n1"], cwd="{tmp_path}"))\' > id.txt'
    )
    options = ["-N2", "-n2", "--gres=gpu:1", "--mem=500"]
    job = submit(outer, options=options, env=env, cwd=tmp_path)
    assert wait(job, env, ended).state is JobState.COMPLETED
    nested = (tmp_path / "id.txt").read_text().strip()
    assert wait(nested, env, ended).state is JobState.COMPLETED
    assert (tmp_path / "inner.txt").read_text() == "tasks=1 rank= cuda= mem= steps=1\n"


def test_forgotten_without_accounting(env: Env) -> None:
    assert job_status("999999", env=env)["999999"].state is JobState.UNKNOWN


def test_controller_down_is_said_in_time(env: Env, tmp_path: Path) -> None:
    conf = Path(env["SLURM_CONF"]).read_text()
    port = next(line for line in conf.splitlines() if line.startswith("SlurmctldPort="))
    (tmp_path / "slurm.conf").write_text(conf.replace(port, "SlurmctldPort=1"))
    down = {**env, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    began = time.monotonic()
    with pytest.raises(SlurmError, match="slurmctld"):
        job_status("1", env=down, timeout=3)
    assert time.monotonic() - began < 10


def test_accounting_knows_what_slurmctld_forgot(
    env_accounting: Env, script: Callable[[str], Path], tmp_path: Path
) -> None:
    env = env_accounting
    job = submit(script("exit 3"), env=env, cwd=tmp_path)
    array = submit(
        script("exit $SLURM_ARRAY_TASK_ID"), options=["--array=0-1"], env=env, cwd=tmp_path
    )
    assert wait(job, env, ended).exit_code == 3
    wait(array, env, ended)
    forgotten(job, env)
    status = wait(job, env, ended)
    assert (status.state, status.exit_code, status.restarts) == (JobState.FAILED, 3, 0)
    forgotten(array, env)
    whole = wait(array, env, ended)
    assert (whole.state, whole.exit_code, len(whole.tasks)) == (JobState.FAILED, 1, 2)


BURN = """
import time
held = bytearray(150 * 2**20)
while time.process_time() < 1.5:
    pass
time.sleep(2)
"""


def test_what_a_job_used(
    env_accounting: Env, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of a job that plain sbatch submitted; then the report of it."""
    env = {**env_accounting, "XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "burn.py").write_text(BURN)
    options = ["-N1", "-n2", "-c2", "--gpus-per-node=2", "--mem=800M", "--time=5"]
    job = submit(script("srun python3 burn.py"), options=options, env=env, cwd=tmp_path)
    wait(job, env, ended)
    usage = recorded(job, env)
    assert (usage.source, usage.state, usage.exit_code) == ("sacct", JobState.COMPLETED, 0)
    assert (usage.nodes, usage.tasks, usage.cpus, usage.gpus) == (1, 2, 4, 2)
    assert (usage.memory, usage.time_limit) == (800 * 2**20, 300)
    assert usage.cpu_seconds is not None
    assert 2.8 < usage.cpu_seconds < 10
    assert usage.largest is not None
    assert 150 * 2**20 < (usage.largest.max_rss or 0) < 300 * 2**20
    assert usage.largest.max_rss_node == usage.hosts
    assert 300 * 2**20 < (usage.node_memory or 0) < 600 * 2**20

    done = runner(tmp_path, env)("report", "--job", job)
    assert done.returncode == 0, done.stderr
    assert "too short to judge" in done.stdout
    page = (tmp_path / f"report-{job}.html").read_text()
    assert "allranks did not start this job" in page
    assert "sbatch" in page
    found = json.loads(runner(tmp_path, env)("report", "--job", job, "--json").stdout)
    assert (found["kind"], found["used"]["source"]) == ("job", "accounting")
    assert found["requested"]["gpus_per_node"] == 2


def recorded(job: str, env: Env) -> Usage:
    """Accounting lags: until the steps are there with what they used."""
    until(lambda: (found := job_usage(job, env=env)) is not None and found.largest is not None)
    usage = job_usage(job, env=env)
    assert usage is not None
    return usage


def forgotten(job: str, env: Env) -> None:
    from allranks.cluster.slurm.commands import query

    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if not query(["squeue", "-h", "-t", "all", "-j", job, "-o", "%i"], env=env):
                return
        except SlurmError:
            return
        time.sleep(1)
    pytest.skip("slurmctld kept the job for two minutes")
