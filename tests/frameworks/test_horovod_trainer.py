"""strategy="horovod": what N ranks learn is what one learns, whoever starts them."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from framework_rig import assert_same_curve, curve, with_environment
from horovod_rig import HERE, LONG, SIZE, by, horovod, script

from allranks.runtime.world import World
from allranks.runtime.world.horovod_init import gloo_variables
from allranks.runtime.world.horovod_rendezvous import open_rendezvous_server
from command_rig import Allranks, runner

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(600)]

ROW = "Horovod, Trainer"
TRUTH = HERE / "horovod_truth_script.py"
FOUR = ("plain", "accumulate", "clipped", "own_loop")
EXACT = (
    "plain", "accumulate", "accumulate3", "clipped", "fp32", "ema", "predivide", "sparse", "partly",
    "two", "manual", "custom", "closure", "own_loop", "to_ddp", "from_ddp", "again",
)  # fmt: skip
Ways = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def venv() -> Path:
    return horovod()


@pytest.fixture
def here(venv: Path, tmp_path: Path, clean_env: dict[str, str]) -> Allranks:
    """The command with the environment activated, as users have it."""
    return partial(runner(tmp_path, with_environment(clean_env, venv)), timeout=LONG)


@pytest.fixture(scope="module")
def ways(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ways]:
    """Every way of training by one rank, two and four: started by plain python alone."""
    folder = tmp_path_factory.mktemp("truth")
    runs = {1: ("single", ()), 2: ("horovod", ()), 4: ("horovod", FOUR)}
    return {ranks: _train(venv, folder, ranks, *run) for ranks, run in runs.items()}


def _train(venv: Path, folder: Path, ranks: int, strategy: str, names: tuple[str, ...]) -> Ways:
    out = folder / f"{ranks}.json"
    command = [venv / "bin" / "python", TRUTH, str(ranks), out, strategy, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Ways = json.loads(out.read_text())
    return found


def _apart(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.cell(ROW, "python", "here")
@pytest.mark.parametrize(
    ("ranks", "way"), [*((2, way) for way in EXACT), *((4, way) for way in FOUR)]
)
def test_the_same_numbers_as_one_process(ways: dict[int, Ways], ranks: int, way: str) -> None:
    one, many = ways[1][way], ways[ranks][way]
    # LBFGS divides by small differences of gradients, which enlarges the last digits.
    tolerance = {"fp32": 2e-5, "closure": 1e-5}.get(way, 1e-10)
    assert len(one["losses"]) >= 5
    assert one["weights"].keys() == many["weights"].keys()
    assert _apart(one["losses"], many["losses"]) < tolerance
    for name, values in one["weights"].items():
        assert _apart(values, many["weights"][name]) < tolerance, name


def test_compression_is_close_and_not_the_same(ways: dict[int, Ways]) -> None:
    one, many = ways[1]["fp32"], ways[2]["compressed"]
    assert 1e-7 < _apart(one["losses"], many["losses"]) < 1e-2


def marked(place: str, launchers: dict[str, list[str]]) -> list[object]:
    return [
        pytest.param(name, words, marks=pytest.mark.cell(ROW, name, place), id=name)
        for name, words in launchers.items()
    ]


@pytest.fixture(scope="module")
def truth(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """One process; Horovod is there, with nothing to do."""
    folder = tmp_path_factory.mktemp("one")
    command = [venv / "bin" / "python", script("trainer", folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert "horovod over 1 rank" in done.stdout, done.stdout
    return curve(done.stdout)


LOCAL = {"fork": ["4"], "srun": ["2"], "torchrun": ["2"], "horovod": ["2"], "mpirun": ["2"]}


@pytest.mark.parametrize(("launcher", "words"), marked("here", LOCAL))
def test_here(
    launcher: str, words: list[str], venv: Path, truth: list[float], tmp_path: Path,
    here: Allranks, clean_env: dict[str, str],
) -> None:  # fmt: skip
    name = script("trainer", tmp_path).name
    options, changes = by(launcher, tmp_path, with_environment(clean_env, venv)["PATH"])
    done = here("run", "--nprocs", *words, *options, name, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(truth, curve(done.stdout))
    how = "mpi" if launcher == "mpirun" else "gloo"
    assert f"horovod over {words[0]} ranks by {how}" in done.stdout


CLUSTER = {
    "srun": [],
    "fork": [],
    "torchrun": [],
    "horovod": [],
    "mpirun": [],
    "python": ["--nprocs", "4"],  # the script's own wish: each task starts what its node lacks
}
ONE_TASK_PER_NODE = ["--nodes", "2", "--nprocs", "2", "--cpus-per-task", "2", "--time", "5m"]


@pytest.mark.slurm
@pytest.mark.parametrize(("launcher", "words"), marked("2 nodes", CLUSTER))
def test_two_nodes(
    launcher: str, words: list[str], venv: Path, truth: list[float], tmp_path: Path,
    slurm: Allranks, slurm_env: dict[str, str],
) -> None:  # fmt: skip
    name = script("trainer", tmp_path).name
    options, changes = by(launcher, tmp_path, slurm_env["PATH"])
    done = slurm(
        "submit",
        *(ONE_TASK_PER_NODE if launcher == "python" else SIZE),
        "--venv",
        str(venv),
        *options,
        "--follow",
        name,
        *words,
        timeout=LONG,
        **changes,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(truth, curve(done.stdout))
    how = "mpi" if launcher == "mpirun" else "gloo"
    assert f"horovod over 4 ranks by {how}" in done.stdout


def test_adasum_by_mpirun(
    venv: Path, tmp_path: Path, here: Allranks, clean_env: dict[str, str]
) -> None:
    options, changes = by("mpirun", tmp_path, with_environment(clean_env, venv)["PATH"])
    words = [str(TRUTH), "2", "out.json", "horovod", "adasum", "plain"]
    done = here("run", "--nprocs", "2", *options, *words, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    made: Ways = json.loads((tmp_path / "out.json").read_text())
    losses = made["adasum"]["losses"]
    assert sum(losses[7:13]) < 0.9 * sum(losses[:6])
    assert _apart(losses, made["plain"]["losses"]) > 1e-6


def test_adasum_by_gloo_says_what_it_needs(venv: Path, tmp_path: Path, here: Allranks) -> None:
    words = [str(TRUTH), "2", "out.json", "horovod", "adasum"]
    done = here("run", "--nprocs", "2", "--launcher", "fork", *words)
    assert done.returncode != 0
    assert "op='adasum' works through MPI only" in done.stderr


@pytest.mark.parametrize("started", ["nprocs", "fork", "horovod"])
def test_a_rank_that_fails_ends_the_others(
    started: str, venv: Path, tmp_path: Path, here: Allranks, clean_env: dict[str, str]
) -> None:
    name = script("trainer", tmp_path).name
    if started == "nprocs":
        command = [venv / "bin" / "python", name, "--nprocs", "2", "--fail", "1"]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_env, capture_output=True, text=True, timeout=LONG
        )
    else:
        options = ["--nprocs", "2", "--launcher", started]
        done = here("run", *options, name, "--fail", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    cause = "ValueError: no such dataset: imagenet"
    if started == "nprocs":
        assert cause in done.stderr.partition("[rank0]: Traceback")[0]
    else:
        assert cause in done.stderr[done.stderr.rindex("first error: rank 1 ") :]


def test_horovodrun_over_two_hosts_needs_no_address(
    venv: Path, truth: list[float], tmp_path: Path, clean_env: dict[str, str]
) -> None:
    """It names no MASTER_ADDR: Horovod meets first and hands rank 0's address round."""
    path = script("trainer", tmp_path)
    with open_rendezvous_server("127.0.0.1") as table:
        address, port = table.serve_in_background()
        ranks = []
        for rank in range(2):
            place = World(rank, 2, 0, 1, rank, 2, None, None, f"host{rank}", "horovod", "")
            told = gloo_variables(place, address, port) | {"HOROVOD_GLOO_IFACE": "lo"}
            command = [str(venv / "bin" / "python"), str(path)]
            ranks.append(
                subprocess.Popen(
                    command, cwd=tmp_path, env=clean_env | told, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip
        said = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert_same_curve(truth, curve(said[0]))
    assert curve(said[1]) == []
