"""The reader of metrics.jsonl: every row once, with its fit, also while the file grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allranks.runs.metrics_file import METRICS_FILE, MetricsFile, last_metrics, read_metrics


def _add(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / METRICS_FILE).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_rows_are_read_once_and_in_portions(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    assert (file.refresh(), file.read()) == (False, [])
    _add(tmp_path, *({"kind": "train", "step": step, "fit": 1} for step in (1, 2, 3)))
    file.refresh()
    assert [row["step"] for row in file.read(2)] == [1, 2]
    assert file.unread == 1
    _add(tmp_path, {"kind": "val", "step": 3, "fit": 1})
    file.refresh()
    assert [row["kind"] for row in file.read()] == ["train", "val"]
    assert (file.unread, file.read()) == (0, [])


def test_a_torn_line_comes_when_it_is_complete(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    (tmp_path / METRICS_FILE).write_text('{"kind": "train", "st')
    file.refresh()
    assert file.read() == []
    with (tmp_path / METRICS_FILE).open("a") as out:
        out.write('ep": 5}\n')
    file.refresh()
    assert [row["step"] for row in file.read()] == [5]


def test_a_replaced_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    _add(tmp_path, {"kind": "train", "step": 7}, {"kind": "train", "step": 3})
    file.refresh()
    assert [row["fit"] for row in file.read()] == [1, 2]
    (tmp_path / METRICS_FILE).unlink()
    _add(tmp_path, {"kind": "train", "step": 1})
    assert file.refresh()
    assert file.read() == [{"kind": "train", "step": 1, "fit": 1}]


def test_other_rows_belong_to_the_fit_of_the_steps_before_them(tmp_path: Path) -> None:
    _add(
        tmp_path,
        {"kind": "train", "step": 4},
        {"kind": "epoch", "step": 4},
        {"kind": "train", "step": 2},
        {"kind": "epoch", "step": 2},
        {"kind": "train", "step": 6, "fit": 9},
    )
    assert [row["fit"] for row in read_metrics(tmp_path)] == [1, 1, 2, 2, 9]
    assert [row["step"] for row in last_metrics(tmp_path)] == [4, 4, 2, 2, 6]
    assert list(read_metrics(tmp_path / "absent")) == last_metrics(tmp_path / "absent") == []
