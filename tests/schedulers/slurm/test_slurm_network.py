"""Where ranks meet: an address that the others reach, a port that nobody else has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_rig import Allranks, reports, runner

pytestmark = [pytest.mark.slurm, pytest.mark.torch]


@pytest.fixture(scope="module")
def network() -> Iterator[object]:
    """Two nodes that have nothing in common but a network of their own."""
    from allranks.cluster.sandbox.testing import sandbox_for_tests
    from allranks.errors import MissingDependencyError

    if os.getuid() != 0:
        pytest.skip("network namespaces of their own need root")
    try:
        with sandbox_for_tests(nodes=2, isolation="network") as cluster:
            yield cluster
    except MissingDependencyError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("launcher", ["srun", "fork"])
def test_the_address_is_chosen_by_route(
    launcher: str, network: object, clean_env: dict[str, str], report_script: Path, tmp_path: Path
) -> None:
    command = runner(tmp_path, {**clean_env, **network.env})  # type: ignore[attr-defined]
    (tmp_path / "report.py").write_text(
        report_script.read_text().replace(
            '"OMP_NUM_THREADS"', '"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"'
        )
    )
    size = ["-N", "2", "--nprocs", "2", "-t", "5m"]
    done = command("submit", *size, "-l", launcher, "--follow", "report.py")
    found = reports(done.stdout)
    assert [each["sum"] for each in found] == [3.0, 3.0], done.stdout + done.stderr
    address = str(found[0]["MASTER_ADDR"])
    assert address.startswith("10.")
    assert address.endswith(".0.1")
    assert {each["GLOO_SOCKET_IFNAME"] for each in found} == {"eth0"}
    assert {each["NCCL_SOCKET_IFNAME"] for each in found} == {"=eth0"}


def test_two_jobs_on_one_node_do_not_collide(slurm: Allranks, report_script: Path) -> None:
    words = ["--nprocs", "2", "-t", "5m", "--nodelist", "node1"]
    for name in ("left", "right"):
        assert slurm("submit", *words, "-J", name, "report.py").returncode == 0
    ports = set()
    for name in ("left", "right"):
        done = slurm("logs", "-f", name)
        found = reports(done.stdout)
        assert [each["sum"] for each in found] == [3.0, 3.0], done.stdout + done.stderr
        ports |= {each["MASTER_PORT"] for each in found}
    assert len(ports) == 2
