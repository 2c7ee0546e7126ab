"""MPI's types and operations for torch's types and reductions.

MPI sends any type as integers of its size. It cannot add half precision: those are reduced as float32 and
rounded once at the end, which is exact where adding in half precision is not. bool is reduced bitwise, so
that a sum of bools is a bool, as with NCCL.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDENED = (torch.float16, torch.bfloat16)
_REDUCED = {
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    torch.int64: "INT64_T",
    torch.int32: "INT32_T",
    torch.int16: "INT16_T",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
}
_OPS = {
    "SUM": "SUM",
    "AVG": "SUM",
    "MIN": "MIN",
    "MAX": "MAX",
    "PRODUCT": "PROD",
    "BAND": "BAND",
    "BOR": "BOR",
    "BXOR": "BXOR",
}
_OPS_OF_BOOL = {"SUM": "BOR", "MAX": "BOR", "MIN": "BAND", "PRODUCT": "BAND"}


class Reduction(NamedTuple):
    """How one reduction of one type is done."""

    op: Any
    """MPI's operation."""
    dtype: torch.dtype
    """The type to reduce in."""
    average: bool
    """Whether the sum is divided by the number of ranks."""


@lru_cache(maxsize=256)
def reduction(mpi: Any, op: Any, dtype: torch.dtype) -> Reduction:
    """Return MPI's operation for ``op`` (a ReduceOp.RedOpType) on ``dtype``; an error when there is none."""
    name = op.name
    if name not in _OPS:
        raise TypeError(f"Backend mpi does not reduce by {name}; it supports {', '.join(_OPS)}.")
    words = {**_OPS, **_OPS_OF_BOOL} if dtype == torch.bool else _OPS
    if dtype == torch.bool and name == "AVG":
        raise TypeError("The average of bool tensors is not a bool. Use ReduceOp.SUM, MIN or MAX.")
    within = torch.float32 if dtype in _WIDENED else dtype
    within = torch.uint8 if dtype == torch.bool else within
    if within not in _REDUCED and not _unsigned(within):
        raise TypeError(
            f"Backend mpi does not reduce {dtype}. Convert the tensor first, e.g. with .float()."
        )
    return Reduction(getattr(mpi, words[name]), within, name == "AVG")


@lru_cache(maxsize=64)
def reduced_type(mpi: Any, dtype: torch.dtype) -> Any:
    """Return MPI's type for a reduction."""
    return getattr(mpi, _REDUCED.get(dtype) or _unsigned(dtype))


def transfer_type(dtype: torch.dtype) -> torch.dtype:
    """Return the integer type as which values are sent that are not reduced."""
    return _BY_SIZE.get(dtype.itemsize, torch.int64)


def _unsigned(dtype: torch.dtype) -> str:
    """uint16, uint32 and uint64, which older PyTorch does not have."""
    name = str(dtype).removeprefix("torch.")
    return f"{name.upper()}_T" if name in ("uint16", "uint32", "uint64") else ""
