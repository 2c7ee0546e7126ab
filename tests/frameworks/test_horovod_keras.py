"""Horovod with Keras: scripts of the users' own, by every way in which they are started."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from framework_rig import assert_same_curve, curve, environment, with_environment

from command_rig import ROOT, Allranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = ROOT / "examples" / "jobs" / "horovod_tensorflow.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
OUTER = ("SLURM_", "PMI", "OMPI_COMM", "ALLRANKS_", "RANK", "LOCAL_", "WORLD_", "HOROVOD_")
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
WORDS = ["--warmup", "0"]
"""The warm-up depends on the number of processes, so curves are compared without it."""

TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
x = tf.random.stateless_uniform((256, 4), seed=(0, 0))
y = tf.reduce_sum(x, axis=1, keepdims=True)
weight = tf.Variable(tf.fill((4, 1), 0.1 * hvd.rank()))
hvd.broadcast_variables([weight], root_rank=0)
part = 64 // hvd.size()

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    gradient, = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    weight.assign_sub(0.2 * gradient)
    return hvd.allreduce(loss)

for number in range(8):
    at = number % 4 * 64 + hvd.rank() * part
    loss = step(x[at : at + part], y[at : at + part])
    if hvd.rank() == 0:
        print(f"loss {number} {float(loss):.6f}", flush=True)
"""


@functools.cache
def venv() -> Path:
    return environment("tensorflow")


def _inside() -> dict[str, str]:
    """What the venv's activation changes: ``allranks run`` takes the first python."""
    found = with_environment({"PATH": os.environ["PATH"]}, venv())
    return {name: found[name] for name in ("PATH", "VIRTUAL_ENV")}


def _run(words: list[object], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env={**with_environment(env, venv()), **QUIET},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@functools.cache
def alone() -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as folder:
        text = _run(["python", SCRIPT, *WORDS], Path(folder), {**OUTSIDE, **LEGACY})
    return tuple(curve(text))


def _learned(text: str, processes: int) -> None:
    assert_same_curve(list(alone()), curve(text), rel=1e-3)
    assert f"{processes} processes of Horovod, Keras 2" in text


@pytest.mark.cell("Horovod Keras, own script", "horovod", "here")
def test_by_horovodrun_through_allranks(allranks: Allranks) -> None:
    """Keras 2 is chosen by the agent: nothing is set here."""
    words = ["--nprocs", "2", str(SCRIPT), *WORDS]
    done = allranks("run", *words, timeout=400, **_inside(), **QUIET)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    _learned(done.stdout, 2)


@pytest.mark.cell("Horovod Keras, own script", "fork", "here")
def test_by_our_own_agent(allranks: Allranks) -> None:
    words = ["--nprocs", "2", "--launcher", "fork", str(SCRIPT), *WORDS]
    done = allranks("run", *words, timeout=400, **_inside(), **QUIET)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    _learned(done.stdout, 2)


@pytest.mark.cell("Horovod Keras, own script", "mpirun", "here")
def test_by_mpirun_with_the_warm_up(tmp_path: Path, clean_env: dict[str, str]) -> None:
    if not Path("/usr/bin/mpirun").exists():
        pytest.skip("Open MPI is not installed")
    start = ["/usr/bin/mpirun", "--oversubscribe", "-np", "2", "python", SCRIPT]
    text = _run([*start, *WORDS], tmp_path, {**clean_env, **LEGACY})
    _learned(text, 2)
    warm = curve(_run([*start, "--warmup", "2"], tmp_path, {**clean_env, **LEGACY}))
    assert len(warm) == 6
    assert warm[0] > curve(text)[0], "the first epochs learn at half the rate"
    assert warm[-1] < warm[0]


@pytest.mark.cell("Horovod Keras, own script", "horovod", "here")
def test_the_gradient_tape(tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "tape.py").write_text(TAPE)
    one = curve(_run(["python", "tape.py"], tmp_path, clean_env))
    two = curve(_run(["horovodrun", "--gloo", "-np", 2, "python", "tape.py"], tmp_path, clean_env))
    assert_same_curve(one, two)


@pytest.mark.slurm
@pytest.mark.cell("Horovod Keras, own script", "horovod", "2 nodes")
def test_two_nodes(slurm: Allranks) -> None:
    given = [word for name, value in QUIET.items() for word in ("--env", f"{name}={value}")]
    size = ["--nodes", "2", "--nprocs", "4", "--time", "5m", "--cpus-per-task", "1", "--follow"]
    words = ["--venv", str(venv()), *size, *given, str(SCRIPT), *WORDS]
    done = slurm("submit", *words, timeout=540)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    _learned(done.stdout, 4)
