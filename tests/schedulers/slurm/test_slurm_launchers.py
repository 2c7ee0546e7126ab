"""Every launcher starts 2 nodes × 2 ranks on a real cluster, and they all-reduce the right sum."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from command_rig import Allranks, reports

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

MPIRUN = "/usr/bin/mpirun"
LAUNCHES = {
    "srun": ["--launcher", "srun"],
    "srun-cyclic": ["--launcher", "srun", "--distribution", "cyclic"],
    "srun-head": ["--launcher", "srun", "--head", "node2"],
    "srun-plain": ["--launcher", "srun", "--no-agent"],
    "fork": ["--launcher", "fork"],
    "fork-head": ["--launcher", "fork", "--head", "node2"],
    "torchrun": ["--launcher", "torchrun"],
    "torchrun-static": ["--launcher", "torchrun", "--rendezvous", "static"],
    "torchrun-plain": ["--launcher", "torchrun", "--no-agent"],
    "launch": ["--launcher", "launch"],
    "accelerate": ["--launcher", "accelerate"],
    "accelerate-static": ["--launcher", "accelerate", "--rendezvous", "static"],
    "mpirun-mpich": ["--launcher", "mpirun"],
    "mpirun-openmpi": ["--launcher", "mpirun", "--env", "OMPI_ALLOW_RUN_AS_ROOT=1",
                       "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"],
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_two_nodes_of_two_ranks(
    name: str, slurm: Allranks, report_script: Path, tmp_path: Path, slurm_env: dict[str, str]
) -> None:
    changes = _needs(name, tmp_path, slurm_env)
    size = ["--nodes", "2", "--nprocs", "4", "--cpus-per-task", "2", "--time", "5m"]
    done = slurm(
        "submit", *size, *LAUNCHES[name], "--follow", "report.py", "--word", "a b", **changes
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = reports(done.stdout)
    assert [each["sum"] for each in found] == [10.0] * 4, done.stdout + done.stderr
    assert [int(str(each["RANK"])) for each in found] == [0, 1, 2, 3]
    assert all(each["group"] == [int(str(each["RANK"])), 4] for each in found)
    assert all(each["word"] == "a b" for each in found)
    assert {each["WORLD_SIZE"] for each in found} == {"4"}
    assert {each["LOCAL_WORLD_SIZE"] for each in found} == {"2"}
    for host in ("node1", "node2"):
        local = sorted(str(each["LOCAL_RANK"]) for each in found if each["host"] == host)
        assert local == ["0", "1"]
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1
    if "head" in name:
        assert found[0]["host"] == "node2"
        assert found[0]["NODE_RANK"] == "0"
    if name == "srun-cyclic":
        assert [each["host"] for each in found] == ["node1", "node2", "node1", "node2"]
    if name in ("srun", "fork", "launch"):
        assert [each["host"] for each in found] == ["node1", "node1", "node2", "node2"]
    expected = "2" if name.startswith(("srun", "mpirun")) else "1"
    assert {each["OMP_NUM_THREADS"] for each in found} == {expected}
    if name == "launch":
        assert sorted(int(str(each["local_rank_arg"])) for each in found) == [0, 0, 1, 1]


def _needs(name: str, tmp_path: Path, env: dict[str, str]) -> dict[str, str]:
    """Skips when a package is missing; Open MPI is put first on the PATH, MPICH is the venv's."""
    package = name.partition("-")[0]
    if package in ("accelerate", "deepspeed") and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if name == "mpirun-mpich" and shutil.which("mpiexec.hydra", path=env["PATH"]) is None:
        pytest.skip("MPICH is not installed")
    if name != "mpirun-openmpi":
        return {}
    if not Path(MPIRUN).exists():
        pytest.skip("Open MPI is not installed")
    folder = tmp_path / "openmpi"
    folder.mkdir()
    (folder / "mpirun").symlink_to(MPIRUN)
    return {"PATH": f"{folder}:{env['PATH']}"}
