"""A JSONL file is followed whatever happens to it: torn lines, growth, replacement."""

from __future__ import annotations

import errno
import json
import os
import re
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.runs import jsonl_tail
from allranks.runs.atomic_files import read_json
from allranks.runs.jsonl_tail import JsonlTail


def _write(path: Path, *rows: object, mode: str = "a") -> None:
    with open(path, mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _steps(tail: JsonlTail) -> list[int]:
    return [row["step"] for row in tail]


def test_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    assert not tail.refresh()
    assert list(tail) == []
    _write(tail.path, {"step": 1})
    assert tail.refresh()
    assert not tail.refresh()
    assert tail[-1] == {"step": 1}


def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    for step in range(5):
        _write(tail.path, {"step": step})
        assert tail.refresh()
        assert _steps(tail) == list(range(step + 1))
    assert tail[1:3] == tail.since(1, 3) == tail.at([1, 2]) == [{"step": 1}, {"step": 2}]
    with pytest.raises(IndexError):
        tail[5]


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    tail.path.write_text('{"step": 1}\n{"st')
    tail.refresh()
    assert _steps(tail) == [1]
    with open(tail.path, "a") as file:
        file.write('ep": 2}\n')
    assert tail.refresh()
    assert _steps(tail) == [1, 2]


def test_what_is_no_object_is_left_out(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    tail.path.write_bytes(
        b'\n[1]\n{"step": 1}\n{"step": 2, "a"\n\x00\xff\n{"bad": }\n{"step": 3}\n'
    )
    tail.refresh()
    assert list(tail) == tail.since(0) == [{"step": 1}, {}, {"step": 3}]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    _write(tail.path, *({"step": step} for step in range(10)))
    tail.refresh()
    _write(tmp_path / "new", {"step": 0}, {"step": 7})
    (tmp_path / "new").replace(tail.path)
    assert tail[0] == {}  # what lies there by now is not what was noted
    assert tail.refresh()
    assert (tail.generation, _steps(tail)) == (1, [0, 7])


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_file_that_was_written_over_is_read_anew(tmp_path: Path, rows: int) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    _write(tail.path, *({"step": step} for step in range(3)))
    tail.refresh()
    _write(tail.path, *({"step": step + 5} for step in range(rows)), mode="w")
    assert tail.refresh()
    assert _steps(tail) == [step + 5 for step in range(rows)]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    _write(tail.path, {"step": 1})
    tail.refresh()
    tail.path.unlink()
    assert tail.refresh()
    assert list(tail) == []
    _write(tail.path, {"step": 2})
    assert tail.refresh()
    assert _steps(tail) == [2]


def test_some_lines_are_kept_aside(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl", aside=re.compile(rb'"kind"\s*:\s*"node"'))
    _write(tail.path, {"kind": "node", "cpus": 8}, {"kind": "sample", "step": 1})
    tail.refresh()
    assert tail.aside == [{"kind": "node", "cpus": 8}]
    assert _steps(tail) == [1]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(2, 50))
def test_any_lines_in_any_pieces(lengths: list[int], piece: int) -> None:
    """Lines longer and shorter than what is read at a time, written in pieces that end anywhere."""
    import tempfile

    rows = [{"step": place, "x": "y" * length} for place, length in enumerate(lengths)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl_tail, "CHUNK_BYTES", 37)
        tail = JsonlTail(Path(folder) / "x.jsonl")
        for begin in range(0, len(data), piece):
            with open(tail.path, "ab") as file:
                file.write(data[begin : begin + piece])
            tail.refresh()
        assert tail.generation == 0
        assert list(tail) == tail.since(0) == rows


def test_lines_that_end_as_on_windows(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    tail.path.write_bytes(b'{"step": 1}\r\n\r\n{"step": 2}\r\n')
    tail.refresh()
    assert _steps(tail) == [1, 2]
    assert tail.since(0) == list(tail)


def test_garbled_facts_are_not_kept_aside(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl", aside=re.compile(rb'"kind"\s*:\s*"node"'))
    tail.path.write_text('{"kind": "node", "cpus": 8}\n{"kind": "node", "cp{"step": 1}\n')
    tail.refresh()
    assert tail.aside == [{"kind": "node", "cpus": 8}]


def test_a_line_without_an_end_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked through for an end is not read again, however often the file grows."""
    monkeypatch.setattr(jsonl_tail, "CHUNK_BYTES", 1000)
    read = 0
    pread = os.pread

    def counted(handle: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(handle, size, offset)
        read += len(data)
        return data

    tail = JsonlTail(tmp_path / "x.jsonl")
    monkeypatch.setattr(os, "pread", counted)
    for _ in range(50):
        with open(tail.path, "a") as file:
            file.write("x" * 2000)
        assert not tail.refresh()
    assert read < 3 * 100_000
    with open(tail.path, "a") as file:
        file.write('\n{"step": 1}\n')
    assert tail.refresh()
    assert _steps(tail) == [1]


def test_a_line_of_no_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_tail, "CHUNK_BYTES", 100)
    monkeypatch.setattr(jsonl_tail, "LONGEST_LINE", 1000)
    tail = JsonlTail(tmp_path / "x.jsonl")
    tail.path.write_text('{"step": 1}\n{"step": "' + "x" * 5000)
    tail.refresh()
    with open(tail.path, "a") as file:
        file.write('{"step": 7}"}\n{"step": 2}\n')
    tail.refresh()
    assert (tail.generation, _steps(tail)) == (0, [1, 2])


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    os.mkfifo(tail.path)
    assert not tail.refresh()
    assert list(tail) == []
    assert read_json(tail.path) == {}


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A file system that answers ESTALE while the list holds True."""
    ill: list[bool] = []
    pread = os.pread

    def read(handle: int, size: int, place: int) -> bytes:
        if any(ill):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(handle, size, place)

    monkeypatch.setattr(jsonl_tail.os, "pread", read)
    return ill


def test_what_cannot_be_read_now_is_there_later(tmp_path: Path, flaky: list[bool]) -> None:
    tail = JsonlTail(tmp_path / "x.jsonl")
    _write(tail.path, {"step": 1}, {"step": 2})
    tail.refresh()
    flaky.append(True)
    assert (tail.since(0), tail.at([1]), tail[0], tail[-1:]) == ([], [], {}, [])
    flaky.clear()
    assert (_steps(tail), tail.at([1])) == ([1, 2], [{"step": 2}])


def test_a_follower_loses_no_line_to_a_read_that_fails(tmp_path: Path, flaky: list[bool]) -> None:
    from allranks.observe.view.run_source import EvenSamples, RunSource
    from allranks.runs.run_folder import Run

    (tmp_path / "run.json").write_text("{}")
    source = RunSource(Run(tmp_path))
    lines = [{"kind": "train", "step": step, "time": step, "train_loss": 1.0} for step in (1, 2, 3)]
    metrics = JsonlTail(tmp_path / "metrics.jsonl")
    sampled = EvenSamples(metrics, lambda row: array("f", [row["step"]]))
    _write(metrics.path, lines[0])
    source.refresh()
    _write(metrics.path, lines[1])
    metrics.refresh()
    refresh = JsonlTail.refresh
    flaky.append(True)
    # The look that finds the line works, the one that reads it fails: it may fail at any moment.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JsonlTail, "refresh", lambda tail: _well(flaky, lambda: refresh(tail)))
        source.refresh()
    sampled.refresh()
    assert (len(source.train), len(sampled)) == (1, 0)
    flaky.clear()
    source.refresh()
    sampled.refresh()
    assert list(source.train["step"]) == [1, 2]
    assert len(sampled) == 2


def _well(ill: list[bool], do: Callable[[], bool]) -> bool:
    ill.clear()
    done = do()
    ill.append(True)
    return done
