"""MPI and compilers: whose they are, and whether they can be compiled with."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_fakes import program, target

from allranks.integrations.frameworks.system_programs import (
    find_compilers,
    find_mpirun,
    install_command,
    mpi_headers,
)

OPEN_MPI = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n    CC: gcc"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101 (id: 1)\nCopyright"


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing of this machine."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("text", "kind", "version"),
    [(OPEN_MPI, "Open MPI", "4.1.4"), (MPICH, "MPICH", "5.0.2"), (INTEL, "Intel MPI", "2021.18")],
)
def test_whose_mpirun(bin_folder: Path, text: str, kind: str, version: str) -> None:
    program(bin_folder, "mpirun", f"while read -r l; do echo \"$l\"; done <<'E'\n{text}\nE")
    found = find_mpirun(target(str(bin_folder / "python")))
    assert found is not None
    assert (found.kind, found.version) == (kind, version)


def test_no_mpirun_and_no_compiler(bin_folder: Path) -> None:
    there = target(str(bin_folder / "python"))
    assert find_mpirun(there) is None
    assert set(find_compilers(there).values()) == {None}
    assert mpi_headers(there) is None


def test_mpicxx_without_headers_is_no_mpi(bin_folder: Path) -> None:
    program(bin_folder, "mpicxx", "echo '<stdin>:1:10: fatal error: mpi.h: No such file'; exit 1")
    assert mpi_headers(target(str(bin_folder / "python"))) is None


@pytest.mark.parametrize(
    ("macros", "title"),
    [
        ("OMPI_MAJOR_VERSION 4|OMPI_MINOR_VERSION 1|OMPI_RELEASE_VERSION 4", "Open MPI 4.1.4"),
        ('MPICH_VERSION "4.2.1"|MPI_VERSION 4', "MPICH 4.2.1"),
        ('MPICH_VERSION "3.4a2"|I_MPI_VERSION "2021.18.1"', "Intel MPI 2021.18.1"),
        ("MPI_VERSION 3", "MPI"),
    ],
)
def test_which_mpi_is_compiled_with(bin_folder: Path, macros: str, title: str) -> None:
    lines = "; ".join(f"echo '#define {macro}'" for macro in macros.split("|"))
    program(bin_folder, "mpicxx", lines)
    found = mpi_headers(target(str(bin_folder / "python")))
    assert found is not None
    assert found.title == title


def test_how_to_get_what_is_missing(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "module avail" in install_command("g++")
    program(bin_folder, "dnf", "")
    monkeypatch.setenv("PATH", str(bin_folder))
    assert install_command("g++") == "dnf install gcc-c++"
    program(bin_folder, "apt-get", "")
    assert install_command("mpi.h") == "apt-get install libopenmpi-dev"
