"""backend="mpi" with a PyTorch that has none built in: real ranks under both MPIs, here and on 2 nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from framework_rig import assert_same_curve, curve
from mpi_rig import NODES, mpirun, script, venv, with_family

from command_rig import runner

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(300)]

ROW = "MPI backend"
FAMILIES = ("mpich", "openmpi")
SIZE = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "2", "--time", "5m"]
FEATURES = (
    "ddp", "batch_norm", "half_hook", "joined", "zero", "fsdp", "dtensor", "functional", "checkpoint",
)  # fmt: skip


def passed(text: str) -> set[str]:
    return {line.split()[-1] for line in text.splitlines() if "passed " in line}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What a single process learns."""
    folder = tmp_path_factory.mktemp("one")
    name = script("trainer_script", folder)
    python = venv() / "bin" / "python"
    done = subprocess.run(
        [python, name, "--strategy", "single"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return curve(done.stdout)


@pytest.mark.parametrize(("family", "ranks"), [("mpich", 3), ("openmpi", 2)])
def test_every_collective(
    family: str, ranks: int, clean_env: dict[str, str], tmp_path: Path
) -> None:
    done = mpirun(with_family(family, clean_env, tmp_path), ranks, "collectives")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(passed(done.stdout)) == 15, done.stdout


@pytest.mark.parametrize("level", ["serialized", "funneled"])
def test_an_mpi_that_one_thread_may_call(
    level: str, clean_env: dict[str, str], tmp_path: Path
) -> None:
    env = with_family("mpich", clean_env, tmp_path)
    done = mpirun(env, 2, "collectives", MPI4PY_RC_THREAD_LEVEL=level)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(passed(done.stdout)) == 15, done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_what_torch_builds_on_it(family: str, clean_env: dict[str, str], tmp_path: Path) -> None:
    done = mpirun(with_family(family, clean_env, tmp_path), 2, "features")
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed(done.stdout) == set(FEATURES)


@pytest.mark.parametrize(
    ("family", "how", "code"),
    [
        *[(family, how, code) for family in FAMILIES
          for how, code in (("raise", 1), ("exit", 7), ("late", 1), ("unseen", 1))],
        ("mpich", "quit", 4), ("mpich", "finally", 6), ("openmpi", "busy", 7),
    ],
)  # fmt: skip
def test_a_rank_that_ends_badly_ends_the_job_with_its_code(
    family: str, how: str, code: int, clean_env: dict[str, str], tmp_path: Path
) -> None:
    """The others wait in a collective; without us MPI's own end would wait for them, and hang."""
    done = mpirun(with_family(family, clean_env, tmp_path), 2, "failing", how)
    assert done.returncode == code, done.stdout + done.stderr
    if how == "late":
        assert "all_reduce over 2 ranks, on rank 0, did not end within 5 s" in done.stderr
    if how == "unseen":
        assert "has ended, but not all others within 5 s: ending the job" in done.stderr


@pytest.mark.parametrize(("family", "how"), [("mpich", "caught"), ("openmpi", "tail")])
def test_a_rank_that_ends_well_leaves_the_others_alone(
    family: str, how: str, clean_env: dict[str, str], tmp_path: Path
) -> None:
    """It caught its sys.exit, or is done long before rank 0 is."""
    done = mpirun(with_family(family, clean_env, tmp_path), 2, "failing", how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is done") == 2, done.stdout


@pytest.mark.cell(ROW, "mpirun", "here")
@pytest.mark.parametrize(
    ("family", "strategy"), [("mpich", "ddp"), ("mpich", "fsdp"), ("openmpi", "ddp")]
)
def test_a_trainer_here(
    family: str, strategy: str, one: list[float], clean_env: dict[str, str], tmp_path: Path
) -> None:
    command = runner(tmp_path, with_family(family, clean_env, tmp_path))
    name = script("trainer_script", tmp_path)
    words = ["--launcher", "mpirun", "--nprocs", "2", name, "--strategy", strategy]
    done = command("run", *words, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(one, curve(done.stdout))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_error_of_a_trainer_is_told(
    family: str, clean_env: dict[str, str], tmp_path: Path
) -> None:
    command = runner(tmp_path, with_family(family, clean_env, tmp_path))
    name = script("trainer_script", tmp_path)
    words = ["--launcher", "mpirun", "--nprocs", "2", name, "--fail", "1"]
    done = command("run", *words, timeout=240)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first error: rank 1" in done.stderr
    assert "ValueError: no such dataset: imagenet" in done.stderr


def _submitted(
    family: str, env: dict[str, str], folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    command = runner(folder, with_family(family, env, folder))
    start = [*SIZE, "--venv", str(venv()), *NODES[family], "--follow"]
    if family == "openmpi":  # the venv has an mpirun too, and is activated first
        start += ["--setup-command", f"export PATH={folder / 'openmpi'}:$PATH"]
    return command("submit", *start, *words, timeout=250)


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("family", "strategy", "launch"),
    [
        pytest.param("openmpi", "ddp", ("srun", "pmix"), marks=pytest.mark.cell(ROW, "srun", "2 nodes")),
        pytest.param("mpich", "fsdp", ("srun", "pmi2"), marks=pytest.mark.cell(ROW, "srun", "2 nodes")),
        pytest.param("openmpi", "fsdp", ("mpirun",), marks=pytest.mark.cell(ROW, "mpirun", "2 nodes")),
        pytest.param("mpich", "ddp", ("mpirun",), marks=pytest.mark.cell(ROW, "mpirun", "2 nodes")),
    ],
)  # fmt: skip
def test_a_trainer_on_two_nodes(
    family: str,
    strategy: str,
    launch: tuple[str, ...],
    one: list[float],
    slurm_env: dict[str, str],
    tmp_path: Path,
) -> None:
    name = script("trainer_script", tmp_path)
    plugin = ["--mpi", launch[1]] if launch[1:] else []
    words = ["--launcher", launch[0], *plugin, name, "--strategy", strategy]
    done = _submitted(family, slurm_env, tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(one, curve(done.stdout))


@pytest.mark.slurm
def test_every_collective_on_two_nodes(slurm_env: dict[str, str], tmp_path: Path) -> None:
    words = ["--launcher", "srun", "--mpi", "pmix", script("collectives", tmp_path)]
    done = _submitted("openmpi", slurm_env, tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(passed(done.stdout)) == 15, done.stdout


@pytest.mark.slurm
def test_srun_without_its_plugin_says_what_to_type(
    slurm_env: dict[str, str], tmp_path: Path
) -> None:
    """Every task is an MPI of its own then."""
    words = ["--launcher", "srun", script("trainer_script", tmp_path)]
    done = _submitted("mpich", slurm_env, tmp_path, *words)
    assert done.returncode != 0
    assert "gives 0 of 1" in done.stdout + done.stderr
    assert "srun --mpi=list shows what this cluster has" in done.stdout + done.stderr
