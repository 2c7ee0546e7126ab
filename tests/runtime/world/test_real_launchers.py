"""Real processes under the real launchers: each world adds up 1 + 2 through gloo."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.runtime.world.endpoints import free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROBE = str(Path(__file__).with_name("world_probe.py"))
BIN = Path(sys.executable).parent
FOREIGN = ("SLURM", "PMI", "OMPI", "TORCHELASTIC", "HOROVOD", "ALLRANKS", "MASTER")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TF_CONFIG")


def environment(**more):
    """Ours, without what a launcher around the tests may have set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in NAMES}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | root | {"OMP_NUM_THREADS": "1"} | more


def run(command, **more):
    done = subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done, sorted((json.loads(line) for line in lines), key=lambda told: told["rank"])


def program(path, words):
    if not Path(path).exists():
        pytest.skip(f"{path} is not installed: that launcher is not tried")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    if words not in version:
        pytest.skip(f"{path} is not {words}")
    return str(path)


def commands():
    """Launcher's name → the command that starts two processes."""
    probe = [sys.executable, PROBE]
    return {
        "torchrun": lambda: [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc-per-node=2",
            PROBE,
        ],
        "openmpi": lambda: [
            program(shutil.which("mpirun", path="/usr/bin:/usr/local/bin") or "mpirun", "Open MPI"),
            "--oversubscribe",
            "-np",
            "2",
            *probe,
        ],
        "mpich": lambda: [program(BIN / "mpiexec", "HYDRA"), "-n", "2", *probe],
        "accelerate": lambda: [
            package("accelerate"),
            *("launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
            *("--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0", PROBE),
        ],
        "deepspeed": lambda: [
            package("deepspeed"),
            *("--num_accelerators=2", f"--master_port={free_port('127.0.0.1')}", PROBE),
        ],
    }


def package(name):
    """A launcher that comes with a Python package."""
    if not (BIN / name).exists():
        pytest.skip(f"{name} is not installed: that launcher is not tried")
    return str(BIN / name)


SLOW = {"deepspeed"}  # importing it takes as long as all others; tests/frameworks trains under it


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in commands()],
)
def test_two_processes_add_up(launcher):
    path = f"{BIN}:{os.environ['PATH']}"
    done, told = run(commands()[launcher](), DS_ACCELERATOR="cpu", PATH=path)
    assert done.returncode == 0, done.stderr
    assert [(t["rank"], t["size"], t["local"], t["sum"]) for t in told] == [
        (0, 2, 0, 3.0),
        (1, 2, 1, 3.0),
    ]
    assert {t["launcher"] for t in told} == {launcher}
    assert {t["backend"] for t in told} == {"gloo"}
    assert told[0]["port"] == told[1]["port"]


def test_plain_python_is_a_world_of_one_and_nccl_falls_back():
    done, told = run([sys.executable, PROBE, "nccl"])
    assert done.returncode == 0, done.stderr
    assert (told[0]["size"], told[0]["sum"], told[0]["launcher"]) == (1, 1.0, "plain")
    assert told[0]["backend"] == "gloo" or shutil.which("nvidia-smi")


def fake_step(rank, **more):
    """Two tasks of srun on this machine, without Slurm."""
    from launcher_variables import step

    env = step(rank, rank, 0, tasks=2, per_node="2", nodes="node1", count=1, step=str(os.getpid()))
    return environment(**env, **more)


def start(rank, *args, **more):
    return subprocess.Popen(
        [sys.executable, PROBE, *args],
        env=fake_step(rank, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_taken_port_and_a_foreign_store_are_passed_over():
    """The first candidate is held by a program that never answers, the second by another job."""
    import torch.distributed as dist

    from allranks.runtime.world.detection import detect
    from allranks.runtime.world.endpoints import candidate_ports

    ports = candidate_ports(detect(fake_step(0)).master_port)
    silent = socket.create_server(("127.0.0.1", ports[0]))
    store = dist.TCPStore("127.0.0.1", ports[1], is_master=True, wait_for_workers=False)
    with silent:
        late = start(1)  # rank 1 comes first and must wait, not join the foreign store
        time.sleep(1)
        ranks = [start(0), late]
        told = [json.loads(rank.communicate(timeout=100)[0]) for rank in ranks]
    assert [t["sum"] for t in told] == [3.0, 3.0]
    assert told[0]["port"] == told[1]["port"] not in ports[:2]
    assert store.num_keys() <= 1


def test_a_missing_rank_0_is_an_error_in_bounded_time():
    code = "import allranks.runtime.world as w; w.init(timeout=3)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=fake_step(1), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "did not find rank 0 at 127.0.0.1 within 3 s" in done.stderr
    assert "refused" in done.stderr


def test_rank_0_names_the_missing_ranks():
    code = "import allranks.runtime.world as w; w.init(timeout=2)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=fake_step(0), capture_output=True, text=True, timeout=60
    )
    assert "1 of 2 ranks did not connect to" in done.stderr


def test_a_failing_rank_does_not_hang_at_exit():
    ranks = [start(0, "gloo", "raise"), start(1)]
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 0]
    assert "a rank that fails" in outputs[0][1]


def test_mpi_backend_that_is_not_built_in_is_named():
    import torch.distributed as dist

    if dist.is_mpi_available():
        pytest.skip("this PyTorch has MPI built in")
    code = "import sys; sys.modules['mpi4py'] = None; import allranks.runtime.world as w; w.init('mpi')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert "MissingDependencyError: Backend 'mpi' needs a PyTorch built with MPI" in done.stderr


def test_import_loads_no_torch():
    code = "import sys, allranks.runtime.world; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
