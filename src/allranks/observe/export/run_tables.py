"""The tables of a run as CSV, and its numbers as event files of TensorBoard, written without PyTorch."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from allranks.core.json_numbers import finite_number
from allranks.errors import MissingDependencyError, UsageError
from allranks.observe.view.metric_columns import INDEX_COLUMNS
from allranks.observe.view.run_source import GPU_VALUES
from allranks.runs.metrics_tables import KINDS, Metrics
from allranks.runs.run_folder import Run


def write_csv(run: Run, table: str, file: TextIO) -> int:
    """Write a header and a line per row, with absent values empty; return the number of rows.

    Line by line: a table of many ranks need not fit into memory.
    """
    metrics = Metrics(run.path)
    names = metrics.names(table)
    if not names:
        return 0
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    count = 0
    for row in metrics.rows(table):
        writer.writerow(_cell(row.get(name)) for name in names)
        count += 1
    return count


def _cell(value: Any) -> Any:
    """Format a cell: lists are joined by spaces, text is made encodable."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


SUFFIX = ".allranks"
"""The end of the names of our files: these alone are ever replaced."""
FOLDER = "tensorboard-export"
TRAINING, MACHINES = "training", "machines"
"""Two runs in TensorBoard: numbers by step, and samples of nodes by seconds since the start."""
_HEAD = (*INDEX_COLUMNS, "task")
_MOST_STEPS = 2**63
"""What the format can count."""
_NODE = ("cpu", "cpu_node", "memory", "memory_node", "net_in", "net_out", "disk_read", "disk_write")

Scalar = tuple[str, int, float, float]
"""Tag, step, wall time, value."""


def export_events(run: Run, output: Path | None = None) -> dict[Path, int]:
    """Write the event files again; return their folders and the number of values in each.

    An older export in the same folder is replaced once the new one is complete; any other file stays.
    """
    folder = output or run.path / FOLDER
    _require_tensorboard()
    metrics = Metrics(run.path)
    written = {
        folder / TRAINING: _write(folder / TRAINING, training_scalars(metrics)),
        folder / MACHINES: _write(folder / MACHINES, machine_scalars(metrics)),
    }
    return {path: count for path, count in written.items() if count}


def training_scalars(metrics: Metrics) -> Iterator[Scalar]:
    """Yield every value of ``metrics.jsonl`` at its step; those of whole epochs below ``epoch/``."""
    for kind in KINDS:
        for row in metrics.rows(kind):
            step, time = finite_number(row.get("step")), finite_number(row.get("time"))
            if step is None or time is None or abs(step) >= _MOST_STEPS:
                continue
            for name, number in _numbers(row).items():
                yield _tag(row.get("task"), _tag_prefix(kind), name), int(step), time, number


def machine_scalars(metrics: Metrics) -> Iterator[Scalar]:
    """Yield the values of nodes and GPUs; their steps are seconds since the first sample."""
    times = (
        finite_number(row.get("time")) for table in ("nodes", "gpus") for row in metrics.rows(table)
    )
    begin = min((time for time in times if time is not None), default=0.0)
    for row in metrics.rows("nodes"):
        yield from _sample_scalars(row, _host(row), _NODE, begin)
    for row in metrics.rows("gpus"):
        yield from _sample_scalars(row, f"{_host(row)}/gpu {row.get('gpu')}", GPU_VALUES, begin)


def _sample_scalars(
    row: Mapping[str, Any], place: str, names: tuple[str, ...], begin: float
) -> Iterator[Scalar]:
    time = finite_number(row.get("time"))
    if time is None or time - begin >= _MOST_STEPS:
        return
    for name in names:
        if (number := _number(row.get(name))) is not None:
            yield _tag(row.get("task"), place, name), round(time - begin), time, number


def _host(row: Mapping[str, Any]) -> str:
    return str(row.get("host") or f"node {row.get('node')}")


def _tag(*parts: object) -> str:
    """Join the parts of a tag; for a job array the first one is the task."""
    return "/".join(str(part) for part in parts if part).encode("utf-8", "replace").decode()


def _tag_prefix(kind: str) -> str:
    return "epoch" if kind == "epoch" else ""


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a line; a value that was not finite is null there and NaN here."""
    found = {name: _number(value) for name, value in row.items() if name not in _HEAD}
    numbers = {name: number for name, number in found.items() if number is not None}
    bad = row.get("nonfinite")
    lost = [str(name) for name in bad if name not in _HEAD] if isinstance(bad, list) else []
    return numbers | dict.fromkeys(lost, math.nan)


def _number(value: object) -> float | None:
    """Return a number; text and booleans are left out."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _write(folder: Path, scalars: Iterable[Scalar]) -> int:
    """Write all scalars into one file and return their number; older files of ours are removed when it is
    complete.
    """
    older, count = list[Path](), 0
    writer = None
    try:
        for scalar in scalars:
            if writer is None:
                older, writer = _open_writer(folder)
            writer.add_event(_event(*scalar))
            count += 1
    finally:
        if writer is not None:
            writer.close()
    for path in older:
        path.unlink(missing_ok=True)
    return count


def _open_writer(folder: Path) -> tuple[list[Path], Any]:
    """Return the files of an older export, and a writer for the new one."""
    module = import_module("tensorboard.summary.writer.event_file_writer")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _own_files(folder), module.EventFileWriter(str(folder), filename_suffix=SUFFIX)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}.\nChoose another folder: --output DIR"
        ) from None


def _event(tag: str, step: int, wall: float, value: float) -> Any:
    event = import_module("tensorboard.compat.proto.event_pb2").Event
    summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
    content = summary(value=[summary.Value(tag=tag, simple_value=_as_float32(value))])
    return event(wall_time=wall, step=step, summary=content)


def _own_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"events.out.tfevents.*{SUFFIX}") if path.is_file()]


def _as_float32(value: float) -> float:
    """Return the value as a 32-bit float can hold it; larger ones are infinite."""
    largest = 3.4028235e38
    return math.copysign(math.inf, value) if abs(value) > largest else value


def _require_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise MissingDependencyError(
            "Event files for TensorBoard need the 'tensorboard' package.\n"
            "Install it with: pip install tensorboard"
        )
