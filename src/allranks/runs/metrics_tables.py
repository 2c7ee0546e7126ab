"""The metrics of a run as tables: ``Run("runs/x").metrics().to_pandas("train")``.

Every file has one writer and is only appended to, so a table can be read while the run is running. Torn
or unknown lines are skipped, never fatal. See ``docs/metrics.md`` for the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import MissingDependencyError, UsageError, did_you_mean
from allranks.runs.attempt import Attempt
from allranks.runs.attempt_history import attempts_of
from allranks.runs.jsonl_tail import JsonlTail
from allranks.runs.metrics_file import read_metrics
from allranks.runs.node_samples import NodeSource, find_nodes

if TYPE_CHECKING:
    import pandas
    import polars

KINDS = ("train", "epoch", "val", "test")
"""The tables of ``metrics.jsonl``."""
TABLES = (*KINDS, "nodes", "gpus", "ranks")
RANK_LISTS = ("step_seconds", "data_seconds", "compute_seconds", "communication_seconds")
"""The columns of ``steps.jsonl``, each a list over the ranks."""
_AT_ONCE = 1024

Columns = dict[str, list[Any]]


class Metrics:
    """The tables of one run folder: train, epoch, val, test, nodes, gpus, ranks."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Metrics({str(self.path)!r})"

    def rows(self, table: str = "train") -> Iterator[dict[str, Any]]:
        """Yield one dict per row, in the order in which they were written, without absent values."""
        if _checked(table) in KINDS:
            return self._lines(table)
        if table == "ranks":
            return (row for block in self._windows() for row in _rows_of(block))
        return self._nodes() if table == "nodes" else self._gpus()

    def columns(self, table: str = "train", names: str | Iterable[str] | None = None) -> Columns:
        """Return one list per column, all of the same length; None where a row has no such value.

        ``names``: only these (or this one), in this order, whether the run has them or not.
        """
        names = [names] if isinstance(names, str) else names
        columns: Columns = {}
        length = 0
        for size, block in self._blocks(_checked(table)):
            for name, values in block.items():
                _padded(columns.setdefault(name, []), length).extend(values)
            length += size
        wanted = list(columns) if names is None else list(names)
        return {name: _padded(columns.get(name, []), length) for name in wanted}

    def names(self, table: str = "train") -> list[str]:
        """Return the columns that this run has."""
        return list(
            dict.fromkeys(name for _, block in self._blocks(_checked(table)) for name in block)
        )

    def to_pandas(self, table: str = "train") -> pandas.DataFrame:
        """Return the table as a DataFrame of pandas."""
        try:
            import pandas
        except ImportError:
            raise _missing("pandas") from None
        return pandas.DataFrame(_of_one_type(self.columns(table)))

    def to_polars(self, table: str = "train") -> polars.DataFrame:
        """Return the table as a DataFrame of polars."""
        try:
            import polars
        except ImportError:
            raise _missing("polars") from None
        return polars.DataFrame(_of_one_type(self.columns(table)), strict=False)

    def _blocks(self, table: str) -> Iterator[tuple[int, Columns]]:
        """Yield some rows at a time, as columns: a window of 1 000 ranks need not become 1 000 dicts."""
        if table == "ranks":
            yield from ((len(block["rank"]), block) for block in self._windows())
            return
        rows = self.rows(table)
        while some := list(islice(rows, _AT_ONCE)):
            names = dict.fromkeys(chain.from_iterable(some))
            yield len(some), {name: [row.get(name) for row in some] for name in names}

    def _lines(self, kind: str) -> Iterator[dict[str, Any]]:
        for task, folder in task_folders(self.path):
            for line in read_metrics(folder):
                if line.get("kind") == kind:
                    row = _line_row(line)
                    yield {"task": task, **row} if task else row

    def _windows(self) -> Iterator[Columns]:
        for attempt in attempts_of(self.path):
            for line in _read(attempt.path / "steps.jsonl"):
                if block := _window(attempt, line):
                    yield block

    def _nodes(self) -> Iterator[dict[str, Any]]:
        for attempt, node in self._sources():
            about = {**_named(attempt), "node": node.node, "host": node.host}
            for sample in node.samples:
                values = {
                    name: each for name, each in sample.items() if name not in ("kind", "gpus")
                }
                if values:
                    yield about | values

    def _gpus(self) -> Iterator[dict[str, Any]]:
        for attempt, node in self._sources():
            about = {**_named(attempt), "node": node.node, "host": node.host}
            for who, file in node.files.items():
                for sample in file:
                    for number, gpu in node.gpus_in(who, sample):
                        facts = {"gpu": number, **node.gpus.get(number, {})}
                        yield about | _gpu_row(gpu, facts, sample.get("time"))

    def _sources(self) -> Iterator[tuple[Attempt, NodeSource]]:
        for attempt in attempts_of(self.path):
            nodes: dict[int, NodeSource] = {}
            find_nodes(attempt.path, nodes)
            for _, node in sorted(nodes.items()):
                node.refresh()
                yield attempt, node


def task_folders(run: Path) -> list[tuple[str, Path]]:
    """Return the folders that hold metrics: the run folder, or of an array each task's, with its name."""
    try:
        tasks = [child for child in (run / "tasks").iterdir() if child.is_dir()]
    except OSError:
        tasks = []
    if not tasks:
        return [("", run)]
    return [(each.name, each) for each in sorted(tasks, key=lambda task: _in_order(task.name))]


def _in_order(task: str) -> tuple[int, str]:
    return (int(task), "") if task.isdigit() else (1 << 62, task)


def _read(path: Path) -> JsonlTail:
    file = JsonlTail(path)
    file.refresh()
    return file


def _named(attempt: Attempt) -> dict[str, Any]:
    task = {"task": attempt.array_task} if attempt.array_task else {}
    return {"attempt": attempt.number, **task}


def _line_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of ``metrics.jsonl`` with the columns in the usual order."""
    head = {name: line[name] for name in ("time", "step", "epoch", "fit") if name in line}
    row = {**head, **line}
    del row["kind"]
    return row


def _window(attempt: Attempt, line: Mapping[str, Any]) -> Columns:
    """Return a line of ``steps.jsonl`` as columns, a row for each rank; empty when it has none."""
    lists = {name: line[name] for name in RANK_LISTS if isinstance(line.get(name), list)}
    size = max(map(len, lists.values()), default=0)
    if not size:
        return {}
    return {
        **{name: [value] * size for name, value in _named(attempt).items()},
        "rank": list(range(size)),
        **{name: [line.get(name)] * size for name in ("time", "step", "epoch")},
        "fit": [line.get("fit", 1)] * size,
        **{name: _padded(values, size) for name, values in lists.items()},
    }


def _gpu_row(gpu: Mapping[str, Any], facts: Mapping[str, Any], time: object) -> dict[str, Any]:
    """Return a GPU of a sample; its number is unique on the node."""
    total = {"memory_total": facts["memory_total"]} if facts.get("memory_total") else {}
    same = {"gpu": facts["gpu"], "uuid": facts.get("uuid", ""), "time": time}
    return {**same, **gpu, **total, "gpu": facts["gpu"]}


def _rows_of(block: Columns) -> Iterator[dict[str, Any]]:
    for values in zip(*block.values(), strict=True):
        yield {name: value for name, value in zip(block, values, strict=True) if value is not None}


def _padded(values: list[Any], length: int) -> list[Any]:
    """Fill the list up with None and return it."""
    values.extend([None] * (length - len(values)))
    return values


def _of_one_type(columns: Columns) -> Columns:
    """Make a column with integers and floats, a loss of 1 and 0.93, one of floats."""
    return {
        name: [float(each) if type(each) is int else each for each in values]
        if any(type(each) is float for each in values)
        else values
        for name, values in columns.items()
    }


def _checked(table: str) -> str:
    if table in TABLES:
        return table
    raise UsageError(
        f"There is no table '{table}'.{did_you_mean(table, TABLES)}\nTables: {', '.join(TABLES)}."
    )


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"A table for {package} needs the '{package}' package.\nInstall it with: pip install {package}"
    )
