"""Export the model's weights from a checkpoint to one file, under the names of the user's model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allranks.errors import UsageError
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.durable_io import sync_folder
from allranks.train.checkpoint.safetensors_file import (
    DTYPES,
    TensorEntry,
    byte_view,
    dtype_name,
    header,
    lay_out,
    write_file,
)

KINDS = ("safetensors", "torch")
_PAIRS = ("C128", "C32")
_Sources = dict[str, Any]
"""Name of a weight → its key in the checkpoint, or the tensor itself."""


def export_weights(
    path: Path,
    out: Path,
    kind: str = "safetensors",
    *,
    average: bool = False,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write the weights of a step folder to one file, atomically.

    ``average``: export the averaged weights (EMA). ``dtype``: convert floating-point weights. Tied weights
    stay tied in a torch file; a safetensors file, which cannot express that, gets a copy of each.
    """
    reader, out = CheckpointReader(path), Path(out)
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name the file to write, such as {out}/weights.pt")
    weights = _Weights(reader, average, dtype)
    write = {"safetensors": _as_safetensors, "torch": _as_torch}[kind]
    half = out.with_name(f".{out.name}.part")
    try:
        write(weights, half)
        half.replace(out)
        sync_folder(out.parent)
    except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a full disk
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"{out} cannot be written: {why}.") from None
    finally:
        half.unlink(missing_ok=True)
    return out


class _Weights:
    """The model's tensors by the user's names, each read on access."""

    def __init__(self, reader: CheckpointReader, average: bool, dtype: torch.dtype | None) -> None:
        self._reader, self._dtype = reader, dtype
        state = reader.blob("state") if "state" in reader.manifest.tensors else {}
        found = _sources(reader, state, "model")
        if not found:
            raise UsageError(f"{reader.path} holds no model.")
        if average:
            averaged = _sources(reader, state, "average")
            if not averaged:
                raise UsageError(
                    f"{reader.path} holds no averaged weights: the training ran without ema.\n"
                    "Export the weights themselves: leave out --average."
                )
            found = self._use_average(found, averaged)
        self._found = found

    def _use_average(self, model: _Sources, averaged: _Sources) -> _Sources:
        """Use the average where there is one: not for buffers, and once for tied weights."""
        of = {self._holder(n, model[n]): averaged[n] for n in averaged if n in model}
        return {n: of.get(self._holder(n, source), source) for n, source in model.items()}

    def entries(self) -> list[TensorEntry]:
        """Return the name, type and shape of each tensor, without reading it."""
        return [self._entry(name, source) for name, source in self._found.items()]

    def _entry(self, name: str, source: str | Tensor) -> TensorEntry:
        if isinstance(source, Tensor):
            plain, shape = source.dtype, tuple(source.shape)
        else:
            plain, shape = self._reader.dtype(source), self._reader.shape(source)
        return TensorEntry(name, dtype_name(self._target(plain)), shape)

    def __getitem__(self, name: str) -> Tensor:
        source = self._found[name]
        value = source if isinstance(source, Tensor) else self._reader.tensor(source)
        return value.to(self._target(value.dtype))

    def whole(self) -> dict[str, Tensor]:
        """Return all tensors; tied ones are the same object."""
        made: dict[str, Tensor] = {}
        for name, source in self._found.items():
            if self._holder(name, source) not in made:
                made[self._holder(name, source)] = self[name]
        return {name: made[self._holder(name, source)] for name, source in self._found.items()}

    def _holder(self, name: str, source: str | Tensor) -> str:
        if isinstance(source, Tensor):
            return name
        return str(self._reader.manifest.tensors[source].get("same_as", source))

    def _target(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if self._dtype is not None and dtype.is_floating_point else dtype


def _sources(reader: CheckpointReader, state: Any, part: str) -> _Sources:
    """Find the weights of a part; scalars are stored in the state itself."""
    keys = [key for key in reader.manifest.tensors if key.startswith(f"{part}.")]
    found: _Sources = {key[len(part) + 1 :]: key for key in keys}
    tree = state.get(part) if isinstance(state, Mapping) else None
    if not isinstance(tree, Mapping):
        return found
    # The extra state of modules is not a weight, although it may contain tensors.
    numbers = {name: each for name, each in tree.items() if isinstance(each, Tensor)}
    found |= numbers
    return {name: found[name] for name in tree if name in found}


def _as_safetensors(weights: _Weights, path: Path) -> None:
    entries = weights.entries()
    for entry in entries:
        if entry.dtype in _PAIRS:
            raise UsageError(
                f"'{entry.name}' is {DTYPES[entry.dtype]}, which safetensors does not support.\n"
                "Export it for torch: --format torch"
            )
    placed = lay_out(entries)

    def parts() -> Iterator[Any]:
        yield header(placed, {"format": "pt"})
        for entry in placed:
            yield byte_view(weights[entry.name]).numpy()

    write_file(path, parts())


def _as_torch(weights: _Weights, path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(weights.whole(), file)
        file.flush()
        os.fsync(file.fileno())
