"""torch's types and reductions in MPI's words; MPI itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Names:
    """Stands for mpi4py.MPI: every name is itself."""

    def __getattr__(self, name: str) -> str:
        return name


MPI = Names()


def op(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


@pytest.fixture(autouse=True)
def fresh() -> None:
    from allranks.runtime.world.mpi import mpi_types as types

    types.reduction.cache_clear()


def reduction(name, dtype):
    from allranks.runtime.world.mpi import mpi_types as types

    return types.reduction.__wrapped__(MPI, op(name), dtype)


def test_half_precision_is_added_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert tuple(reduction("SUM", dtype)) == ("SUM", torch.float32, False)
    assert tuple(reduction("AVG", torch.float64)) == ("SUM", torch.float64, True)


def test_a_sum_of_truths_is_a_truth() -> None:
    assert tuple(reduction("SUM", torch.bool)) == ("BOR", torch.uint8, False)
    assert reduction("MIN", torch.bool).op == "BAND"
    with pytest.raises(TypeError, match="not a bool"):
        reduction("AVG", torch.bool)


def test_what_cannot_be_reduced_is_named() -> None:
    with pytest.raises(TypeError, match="PREMUL_SUM"):
        reduction("PREMUL_SUM", torch.float32)
    with pytest.raises(TypeError, match=r"torch\.float8_e4m3fn"):
        reduction("SUM", torch.float8_e4m3fn)


def test_every_type_travels_as_integers_of_its_size() -> None:
    from allranks.runtime.world.mpi.mpi_types import reduced_type, transfer_type

    assert transfer_type(torch.bfloat16) == torch.int16
    assert transfer_type(torch.complex128) == torch.int64
    assert reduced_type.__wrapped__(MPI, torch.float32) == "FLOAT"
    assert reduced_type.__wrapped__(MPI, torch.uint32) == "UINT32_T"
