"""The MPI backend without MPI: which library, which words, which errors."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from allranks.errors import MissingDependencyError, WorldError
from allranks.runtime.world.detection import detect
from allranks.runtime.world.mpi import mpi_library as library
from allranks.runtime.world.mpi.mpi_backend import compare_world

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MPICH = SimpleNamespace(Get_library_version=lambda: "MPICH Version:      5.0.2\nmore\x00")
OPEN_MPI = SimpleNamespace(Get_library_version=lambda: "Open MPI v4.1.4, package: Debian\x00")


@pytest.mark.parametrize(
    ("env", "family"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "openmpi"),
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0"}, "openmpi"),
        (HYDRA, "mpich"),
        ({"SLURM_PROCID": "0"}, None),
    ],
)
def test_the_launcher_tells_the_family(env: dict[str, str], family: str | None) -> None:
    assert library.launcher_family(env) == family


def test_the_library_of_the_launcher_is_chosen_and_the_users_choice_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MPI4PY_MPIABI", raising=False)
    monkeypatch.setattr(library, "_loads", lambda path: path == "libmpi.so.40")
    library.choose_family(HYDRA)
    assert "MPI4PY_MPIABI" not in os.environ  # it is not installed
    library.choose_family({"PMIX_RANK": "0", "MPI4PY_LIBMPI": "/opt/libmpi.so"})
    assert "MPI4PY_MPIABI" not in os.environ
    library.choose_family({"PMIX_RANK": "0"})
    assert os.environ.pop("MPI4PY_MPIABI") == "openmpi"


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install mpi4py"):
        library.require_mpi4py()


def test_libraries_are_named_in_a_few_words() -> None:
    assert library.describe_library(MPICH) == "MPICH 5.0.2"
    assert library.describe_library(OPEN_MPI) == "Open MPI v4.1.4"


def test_a_world_that_mpi_counts_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*HYDRA, "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "SLURM_STEP_ID", "SLURM_JOB_ID"]:
        monkeypatch.delenv(name, raising=False)
    here = replace(detect({}), rank=1, size=2)
    compare_world(here, 1, 2, MPICH)
    with pytest.raises(WorldError, match=r"MPI \(MPICH 5.0.2\) gives 0 of 1") as error:
        compare_world(here, 0, 1, MPICH)
    assert "allranks run --launcher mpirun" in str(error.value)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(WorldError, match="--mpi pmi2"):
        compare_world(here, 0, 1, MPICH)
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(WorldError, match="MPI4PY_MPIABI=mpich"):
        compare_world(here, 0, 1, OPEN_MPI)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with pytest.raises(WorldError, match="leave out --head"):
        compare_world(here, 0, 2, MPICH)
