"""Users' own Horovod scripts, by every launcher that can start them: they learn what one process does."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from framework_rig import assert_same_curve, curve, with_environment
from horovod_rig import LONG, SIZE, by, horovod, script

from command_rig import ROOT, Allranks, runner, until

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]

ROW = "Horovod torch, own script"
FIRST = "first error: rank 1 "


@pytest.fixture(scope="module")
def venv() -> Path:
    return horovod()


@pytest.fixture
def here(venv: Path, tmp_path: Path, clean_env: dict[str, str]) -> Allranks:
    """The command with the environment activated, as users have it."""
    return partial(runner(tmp_path, with_environment(clean_env, venv)), timeout=LONG)


@pytest.fixture(scope="module")
def truth(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """One process, without any launcher."""
    path = script("own", tmp_path_factory.mktemp("one"))
    done = subprocess.run(
        [venv / "bin" / "python", path], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    return curve(done.stdout)


def marked(place: str, launchers: dict[str, list[str]]) -> list[object]:
    return [
        pytest.param(name, words, marks=pytest.mark.cell(ROW, name, place), id=name)
        for name, words in launchers.items()
    ]


LOCAL = {
    "fork": ["4", "--again"],
    "srun": ["2"],
    "torchrun": ["2", "--again"],
    "launch": ["2"],
    "horovod": ["2"],
    "mpirun": ["4"],
}


@pytest.mark.parametrize(("launcher", "words"), marked("here", LOCAL))
def test_here(
    launcher: str, words: list[str], venv: Path, truth: list[float], tmp_path: Path,
    here: Allranks, clean_env: dict[str, str],
) -> None:  # fmt: skip
    name = script("own", tmp_path).name
    options, changes = by(launcher, tmp_path, with_environment(clean_env, venv)["PATH"])
    size, *rest = words
    done = here("run", "--nprocs", size, *options, name, *rest, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(truth, curve(done.stdout))
    how = "mpi None" if launcher == "mpirun" else "gloo lo"
    for rank in range(int(size)):
        place = f"{rank} of {size}, {rank} of {size} here, 0 of 1 across, by {how}"
        assert f"rank {place}" in done.stdout, done.stdout


CLUSTER = {
    "horovod": ["--again"],
    "srun": [],
    "fork": [],
    "torchrun": [],
    "mpirun": [],
}


@pytest.mark.slurm
@pytest.mark.parametrize(("launcher", "words"), marked("2 nodes", CLUSTER))
def test_two_nodes(
    launcher: str, words: list[str], venv: Path, truth: list[float], tmp_path: Path,
    slurm: Allranks, slurm_env: dict[str, str],
) -> None:  # fmt: skip
    name = script("own", tmp_path).name
    options, changes = by(launcher, tmp_path, slurm_env["PATH"])
    done = slurm(
        "submit",
        *SIZE,
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
    how = "mpi None" if launcher == "mpirun" else "gloo lo"
    for rank in range(4):
        place = f"{rank} of 4, {rank % 2} of 2 here, {rank // 2} of 2 across, by {how}"
        assert f"rank {place}" in done.stdout, done.stdout


@pytest.mark.slurm
def test_the_interface_is_that_of_the_nodes_network(
    network: object, venv: Path, truth: list[float], tmp_path: Path, clean_env: dict[str, str]
) -> None:
    """Two nodes that have nothing in common but eth0; the second is the head."""
    command = runner(tmp_path, {**clean_env, **network.env})  # type: ignore[attr-defined]
    name = script("own", tmp_path).name
    words = ["--launcher", "horovod", "--head", "node2", "--follow", name]
    done = command("submit", *SIZE, "--venv", str(venv), *words, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(truth, curve(done.stdout))
    assert done.stdout.count("by gloo eth0") == 4


@pytest.fixture
def network() -> Iterator[object]:
    from allranks.cluster.sandbox.testing import sandbox_for_tests
    from allranks.errors import MissingDependencyError

    if os.getuid() != 0:
        pytest.skip("network namespaces of their own need root")
    try:
        with sandbox_for_tests(nodes=2, isolation="network") as cluster:
            yield cluster
    except MissingDependencyError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize(
    ("launcher", "words"), [("fork", ["--hang"]), ("torchrun", []), ("horovod", ["--hang"])]
)
def test_a_rank_that_fails_ends_the_others(
    launcher: str, words: list[str], venv: Path, tmp_path: Path, here: Allranks
) -> None:
    """Whether these wait in Horovod, which then raises errors of its own, or somewhere else."""
    name = script("own", tmp_path).name
    options = ["--nprocs", "2", "--launcher", launcher]
    done = here("run", *options, name, "--fail", "1", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr[done.stderr.index(FIRST) :]
    assert "ValueError: no such dataset: imagenet" in last


@pytest.mark.slurm
def test_a_rank_that_fails_ends_the_job(
    venv: Path, tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str]
) -> None:
    name = script("own", tmp_path).name
    words = ["--launcher", "horovod", "--follow", name, "--fail", "1", "--hang"]
    done = slurm("submit", *SIZE, "--venv", str(venv), *words, timeout=LONG)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "ValueError: no such dataset: imagenet" in text[text.index(FIRST) :]
    until(lambda: not _servers(tmp_path))  # the table ends with the job


def _servers(folder: Path) -> list[str]:
    """Processes that serve a table for a job of this folder, whose environment names it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            known = (process / "environ").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if "allranks.runtime.agent horovod-server" in words and str(folder) in words + known:
            found.append(f"{process.name} {words}")
    return found


def test_the_example(venv: Path, tmp_path: Path, here: Allranks) -> None:
    example = str(ROOT / "examples" / "jobs" / "horovod_torch.py")
    done = here("run", "--nprocs", "2", example)
    assert done.returncode == 0, done.stdout + done.stderr
    found = curve(done.stdout)
    assert len(found) == 20
    assert found[-1] < found[0]


@pytest.mark.slurm
def test_the_examples_job_file(
    venv: Path, tmp_path: Path, slurm: Allranks, slurm_env: dict[str, str]
) -> None:
    """As it stands, but for what this cluster does not have: the site and its modules."""
    site = str(tmp_path / "here.toml")
    assert slurm("sites", "detect", "--name", "here", "-o", site).returncode == 0
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = ["--config", "examples/jobs/alvis-horovod.toml", "--site", site]
    fewer = ["--gpus-per-node", "2", "--partition", "main", "--venv", str(venv)]
    done = slurm(
        "submit", *words, *fewer, "--follow", timeout=LONG,
        **{"BASH_FUNC_module%%": "() { :; }", "BASH_FUNC_ml%%": "() { :; }"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(curve(done.stdout)) == 20


def test_a_rank_of_another_job_passes_nothing_on(
    venv: Path, tmp_path: Path, here: Allranks
) -> None:
    """HOROVOD_* of an outer job must not reach the inner one."""
    outer = {f"HOROVOD_{name}": value for name, value in
             {"RANK": "0", "SIZE": "2", "CROSS_SIZE": "9", "GLOO_RENDEZVOUS_PORT": "1",
              "GLOO_RENDEZVOUS_ADDR": "192.0.2.1", "GLOO_IFACE": "nowhere"}.items()}  # fmt: skip
    name = script("own", tmp_path).name
    options = ["--nprocs", "2", "--launcher", "srun"]
    done = here("run", *options, name, **outer)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2, 0 of 2 here, 0 of 1 across" in done.stdout


def test_the_page_runs_as_it_stands(venv: Path, tmp_path: Path, here: Allranks) -> None:
    """Its own script by the chosen launcher, its Trainer by plain python."""
    page = (ROOT / "docs" / "frameworks" / "horovod.md").read_text()
    own, trainer = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "hvd_train.py").write_text(own)
    (tmp_path / "train.py").write_text(trainer)
    done = here("run", "--nprocs", "2", "hvd_train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(curve(done.stdout)) == 20
    python = [venv / "bin" / "python", "train.py"]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "horovod over 2 ranks by gloo, compression fp16" in done.stdout
