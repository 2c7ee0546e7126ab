"""TensorFlow's workers, really started: each launcher learns what one process learns."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework_rig import assert_same_curve, curve, environment, with_environment

from allranks.errors import MissingDependencyError
from command_rig import ROOT, Allranks, runner, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = ROOT / "examples" / "jobs" / "multi_worker.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
OPENMPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OUTER = ("SLURM_", "PMI", "OMPI_COMM", "ALLRANKS_", "RANK", "LOCAL_", "WORLD_", "NODE_RANK", "TF_C")
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
ON_NODES = ["--time", "5m", "--cpus-per-task", "1", "--follow"]


@functools.cache
def venv() -> Path:
    return environment("tensorflow")


def _inside() -> dict[str, str]:
    """What the venv's activation changes: ``allranks run`` takes the first python."""
    found = with_environment({"PATH": os.environ["PATH"]}, venv())
    return {name: found[name] for name in ("PATH", "VIRTUAL_ENV")}


@functools.cache
def alone() -> tuple[float, ...]:
    """The curve of one process, by the same script."""
    with tempfile.TemporaryDirectory() as folder:
        done = _python(Path(folder), OUTSIDE)
    assert done.returncode == 0, done.stderr
    assert "1 workers of MirroredStrategy" in done.stdout
    return tuple(curve(done.stdout))


def _python(folder: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [venv() / "bin/python", SCRIPT, *words], cwd=folder, env={**env, **QUIET},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def _learned(done: subprocess.CompletedProcess[str], workers: int) -> None:
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-6000:]
    assert_same_curve(list(alone()), curve(done.stdout))
    assert f"{workers} workers of CollectiveAllReduceStrategy" in done.stdout, text[-6000:]


@pytest.mark.cell("TensorFlow", "python", "here")
def test_one_process_and_its_model_is_saved(tmp_path: Path, clean_env: dict[str, str]) -> None:
    done = _python(tmp_path, clean_env, "--save", "model/one.keras")
    assert done.returncode == 0, done.stderr
    assert tuple(curve(done.stdout)) == pytest.approx(alone())
    assert (tmp_path / "model/one.keras").stat().st_size > 0


@pytest.mark.cell("TensorFlow", "fork", "here")
def test_two_workers_with_keras_3(allranks: Allranks, tmp_path: Path) -> None:
    words = ["--nprocs", "2", str(SCRIPT), "--save", "two.keras"]
    done = allranks("run", *words, timeout=400, **_inside(), **QUIET)
    _learned(done, 2)
    assert "cannot fit() on several workers; replaced its" in done.stderr + done.stdout
    assert [path.name for path in tmp_path.glob("*.keras")] == ["two.keras"]


@pytest.mark.cell("TensorFlow", "srun", "here")
def test_two_workers_with_keras_2(allranks: Allranks) -> None:
    words = ["--nprocs", "2", "--launcher", "srun", str(SCRIPT)]
    done = allranks("run", *words, timeout=400, **_inside(), TF_USE_LEGACY_KERAS="1", **QUIET)
    _learned(done, 2)
    assert "replaced its" not in done.stderr + done.stdout


@pytest.mark.cell("TensorFlow", "torchrun", "here")
def test_torchrun_that_knows_nothing_of_tensorflow(
    tmp_path: Path, clean_env: dict[str, str]
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = ["--nproc-per-node", "2", "--no-python", str(venv() / "bin/python"), str(SCRIPT)]
    # A proxy that gRPC would go through, were it not told otherwise.
    env = {**clean_env, **QUIET, "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [*torchrun, *command], cwd=tmp_path, env=env,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    _learned(done, 2)


@pytest.mark.cell("TensorFlow", "mpirun", "here")
def test_two_workers_by_mpirun(tmp_path: Path, clean_env: dict[str, str]) -> None:
    if not Path("/usr/bin/mpirun").exists():
        pytest.skip("Open MPI is not installed")
    done = subprocess.run(
        ["/usr/bin/mpirun", "--oversubscribe", "-np", "2", str(venv() / "bin/python"), str(SCRIPT)],
        cwd=tmp_path, env={**clean_env, **QUIET, **OPENMPI},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    _learned(done, 2)


TWO_NODES = {
    "srun": ["--launcher", "srun", "--nprocs", "4"],
    "fork": ["--launcher", "fork", "--nprocs", "4", "--head", "node2"],
    "python": ["--launcher", "python", "--nprocs", "2"],
    "mpirun": ["--launcher", "mpirun", "--nprocs", "4"],
}


@pytest.mark.slurm
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(name, marks=pytest.mark.cell("TensorFlow", name, "2 nodes"))
        for name in TWO_NODES
    ],
)
def test_two_nodes(launcher: str, slurm: Allranks) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("MPI is not installed")
    variables = {**QUIET, **OPENMPI} if launcher == "mpirun" else QUIET
    given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    size = ["--nodes", "2", *TWO_NODES[launcher], *ON_NODES]
    done = slurm("submit", "--venv", str(venv()), *size, *given, str(SCRIPT), timeout=540)
    words = TWO_NODES[launcher]
    _learned(done, int(words[words.index("--nprocs") + 1]))


OWN_BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node={tasks} --cpus-per-task=1 --time=5 --output=job.out --wait
source {venv}/bin/activate
export {variables}
srun python {script} {words}
"""


@pytest.mark.slurm
@pytest.mark.cell("TensorFlow", "srun", "2 nodes")
def test_a_batch_script_of_the_users_own(tmp_path: Path, slurm_env: dict[str, str]) -> None:
    variables = " ".join(f"{name}={value}" for name, value in QUIET.items())
    text = OWN_BATCH.format(
        tasks=2, venv=venv(), variables=variables, script=SCRIPT, words="--save all.keras"
    )
    (tmp_path / "job.sh").write_text(text)
    done = subprocess.run(
        ["sbatch", "job.sh"], cwd=tmp_path, env=slurm_env,
        capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    output = (tmp_path / "job.out").read_text()
    _learned(subprocess.CompletedProcess([], done.returncode, output, done.stderr), 4)
    assert (tmp_path / "all.keras").exists()


@pytest.fixture(scope="module")
def network() -> Iterator[object]:
    """Two nodes with ports of their own: the resolver takes the same ones on every node."""
    from allranks.cluster.sandbox.testing import sandbox_for_tests

    if os.geteuid() != 0:
        pytest.skip("network namespaces of their own need root")
    try:
        with sandbox_for_tests(nodes=2, isolation="network") as cluster:
            yield cluster
    except MissingDependencyError as error:
        pytest.skip(f"no Slurm here: {str(error).splitlines()[0]}")


@pytest.mark.slurm
@pytest.mark.cell("TensorFlow", "srun", "2 nodes")
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_slurm_cluster_resolver_on_nodes_without_gpus(
    ranks: int, network: object, clean_env: dict[str, str], tmp_path: Path
) -> None:
    """Keras 2: with the resolver's own strategy nobody repairs Keras 3."""
    slurm = runner(tmp_path, {**clean_env, **network.env})  # type: ignore[attr-defined]
    variables = {**QUIET, "TF_USE_LEGACY_KERAS": "1"}
    given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    size = ["--nodes", "2", "--nprocs", str(ranks), "--launcher", "srun", *ON_NODES]
    words = [str(SCRIPT), "--resolver"]
    done = slurm("submit", "--venv", str(venv()), *size, *given, *words, timeout=540)
    _learned(done, ranks)


@pytest.mark.parametrize("keras", ["3", "2"])
def test_a_killed_training_goes_on(keras: str, allranks: Allranks, tmp_path: Path) -> None:
    """Killed in the middle, started again: the epochs continue, and end where they would have."""
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if keras == "2" else {}
    words = ["run", "--nprocs", "2", str(SCRIPT), "--backup", "saved"]
    env = {**OUTSIDE, **_inside(), **QUIET, **legacy, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [sys.executable, "-m", "allranks", *words, "--epochs", "100000"], cwd=tmp_path, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0,
    ) as first:  # fmt: skip
        assert first.stdout is not None
        seen = ""
        for line in first.stdout:
            seen += line
            if "loss 2 " in line:
                break
        os.killpg(first.pid, signal.SIGKILL)
    until(lambda: not _workers_left(tmp_path))
    done = allranks(*words, "--epochs", "12", timeout=400, **_inside(), **QUIET, **legacy)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    again = {int(line.split()[2]) for line in done.stdout.splitlines() if " loss " in line}
    assert 0 < min(again) <= 11, done.stdout
    assert max(again) == 11
    whole = _python(tmp_path, env, "--epochs", "12")
    last = [curve(text)[-1] for text in (done.stdout, whole.stdout)]
    assert last[0] == pytest.approx(last[1], rel=1e-3)
    assert not list((tmp_path / "saved").glob("epoch-*"))


@pytest.mark.parametrize("keras", ["3", "2"])
def test_workers_told_to_leave_save_together_and_go_on(
    keras: str, allranks: Allranks, tmp_path: Path
) -> None:
    """USR1 in the middle of an epoch: both workers leave at one step, and the next attempt goes on."""
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if keras == "2" else {}
    words = ["run", "--nprocs", "2", str(SCRIPT), "--backup", "saved"]
    env = {**OUTSIDE, **_inside(), **QUIET, **legacy, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [sys.executable, "-m", "allranks", *words, "--epochs", "100000"], cwd=tmp_path, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as first:  # fmt: skip
        assert first.stdout is not None
        seen = ""
        for line in first.stdout:
            seen += line
            if "loss 2 " in line:
                first.send_signal(signal.SIGUSR1)
        assert first.wait(120) == 75, seen[-4000:]
    attempt = next(tmp_path.glob("runs/*/attempts/1"))
    assert "on SIGUSR1" in (attempt / "interrupted").read_text()
    assert not list((attempt / "failures").glob("*")), seen[-4000:]
    left = json.loads((attempt / "progress.json").read_text())["step"]
    done = allranks(
        *words, "--epochs", str(left // 16 + 4), timeout=400, **_inside(), **QUIET, **legacy
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    again = {int(line.split()[2]) for line in done.stdout.splitlines() if " loss " in line}
    assert min(again) >= left // 16 - 1, (left, done.stdout)


@pytest.mark.slurm
def test_a_job_that_is_told_to_leave_goes_back_into_the_queue(
    slurm: Allranks, slurm_env: dict[str, str], tmp_path: Path
) -> None:
    size = ["--nodes", "2", "--nprocs", "2", "--cpus-per-task", "1", "--time", "15m", "--requeue"]
    given = [f"--env={name}={value}" for name, value in QUIET.items()]
    words = [str(SCRIPT), "--backup", "saved", "--epochs", "60"]
    done = slurm("submit", "--json", "--venv", str(venv()), *size, *given, *words, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    run = Path(told["folder"])

    def said() -> str:
        return "".join(path.read_text() for path in run.glob("slurm-*.out"))

    until(lambda: " loss 2 " in said(), 240)
    subprocess.run(["scancel", "--signal=USR1", told["job_id"]], env=slurm_env, check=True)
    until(lambda: (run / "finished").exists(), 420)
    assert len([*run.glob("attempts/[0-9]*")]) == 2, said()
    seen = [int(line.split()[2]) for line in said().splitlines() if " loss " in line]
    assert (min(seen), max(seen)) == (0, 59)
    assert seen.count(0) == 1, said()


def _workers_left(folder: Path) -> bool:
    """Whether a process still works in this folder."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if process.readlink() == folder and process.parent.name != str(os.getpid()):
                return True
        except OSError:
            continue
    return False


def test_too_late_says_what_to_move(tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "late.py").write_text(
        "import tensorflow as tf\nimport allranks\nx = tf.ones(3)\nallranks.tensorflow.strategy()\n"
    )
    env = {**clean_env, **QUIET, "ALLRANKS_WORLD": "rank=0,world_size=2"}
    done = subprocess.run(
        [venv() / "bin/python", "late.py"], cwd=tmp_path, env=with_environment(env, venv()),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "was called too late in late.py: TensorFlow has started its devices" in done.stderr
    assert "right below the imports" in done.stderr
