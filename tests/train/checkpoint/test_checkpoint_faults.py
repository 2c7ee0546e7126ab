"""Kills, full disks and unknown content: old checkpoints stay, and training continues."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from checkpoint_rig import names, new_store, save, save_steps, small

from allranks.errors import UsageError
from allranks.train.checkpoint import rank_completion as completion_notes
from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader, unpack_blob
from allranks.train.checkpoint.manifest import BrokenCheckpoint, Manifest
from allranks.train.checkpoint.valid_checkpoints import find_problems
from allranks.train.checkpoint.weights_export import export_weights
from allranks.train.checkpoint.write_plan import CheckpointState

KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.write_plan import CheckpointState
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore
from allranks.train.checkpoint.valid_checkpoints import find_problems
from allranks.errors import UsageError
from checkpoint_rig import save

torch.set_num_threads(1)
store, chance = CheckpointStore(Path(sys.argv[1])), random.Random(7)

def write_for_ever():
    token = store.take_over({})
    step = store.list_saved()[0].step if store.list_saved() else 0
    while True:
        step += 1
        tensors = {"w": torch.full((700_000,), float(step)), "b": torch.full((300_000,), float(step))}
        assert save(store, token, step, [CheckpointState(tensors, own=step)] * 2, keep=2) == ["", ""]

newest = 0
for kill in range(6):
    child = os.fork()
    if child == 0:
        write_for_ever()
    time.sleep(chance.uniform(0.03, 0.3))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = store.list_saved()
    links = [store.folder / name for name in store.links()]
    for path in [*(each.path for each in found), *links]:
        assert find_problems(path) == [], (kill, path, find_problems(path))
        reader = CheckpointReader(path)
        assert reader.tensor("w").unique().tolist() == [reader.manifest.step], path
    assert (found[0].step if found else 0) >= newest
    newest = found[0].step if found else 0
print("newest", newest)
"""


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("size", [1, 3])
def test_a_full_disk_keeps_the_old_ones(small_disk: Path, size: int) -> None:
    store, token = new_store(small_disk)
    save_steps(store, token, 1)
    assert store.free_bytes() < 8 << 20
    large = CheckpointState({"w": torch.ones(4 << 20), "v": torch.ones(1)})
    said = save(store, token, 2, [large] * size)
    assert "No space left on device" in said[0]
    assert names(store) == ["step-00000001"]
    assert find_problems(store.folder / "latest") == []
    assert [path.name for path in store.folder.glob(".*")] == []
    save_steps(store, token, 3)  # and when there is space again, saving works


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_full_disk_leaves_no_half_export(tmp_path: Path, small_disk: Path, kind: str) -> None:
    store, token = new_store(tmp_path)
    assert save(store, token, 1, [CheckpointState({"model.w": torch.ones(4 << 20)})]) == [""]
    with pytest.raises(UsageError, match="cannot be written"):
        export_weights(store.folder / "latest", small_disk / "weights", kind)
    assert [*small_disk.iterdir()] == []


def test_a_rank_that_cannot_write_stops_the_save(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1)
    part = store.stage(2, token)
    (part / "rank-00001.safetensors").mkdir()  # it cannot be opened as a file
    savers = [CheckpointSaver(store, rank, 2, token) for rank in range(2)]
    for saver in savers:
        saver.start(small(2), part, {"step": 2})
    for saver in savers:
        saver.wait()
    assert "Is a directory" in savers[1].problem
    assert savers[0].problem == f"rank 1: {savers[1].problem}"
    assert names(store) == ["step-00000001"]


def test_rank_0_hears_of_a_failure_and_can_be_told_to_stop_waiting(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    part = store.stage(1, token)
    saver = CheckpointSaver(store, 0, 2, token)
    saver.start(small(1), part, {"step": 1})
    completion_notes.report_failure(part, 1, "the disk of rank 1 is gone")
    saver.wait()
    assert saver.problem == "rank 1: the disk of rank 1 is gone"
    saver.start(small(2), store.stage(2, token), {"step": 2})
    assert saver.busy
    saver.cancel()
    saver.wait()
    assert saver.problem == "the save was cancelled"
    assert names(store) == []


def test_rank_0_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_notes, "TIMEOUT", 0.3)
    store, token = new_store(tmp_path)
    saver = CheckpointSaver(store, 0, 3, token, asynchronous=False)
    saver.start(small(1), store.stage(1, token), {"step": 1})
    assert saver.problem == "rank 1, 2 did not write anything for 0 s"
    assert [*store.folder.glob(".*")] == []


def test_waiting_for_the_others_asks_the_disk_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls get less frequent, and the sizes are read once before the cancellation."""

    class Cancelled(threading.Event):
        pauses: ClassVar[list[float]] = []

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.pauses.append(timeout)
            return len(self.pauses) == 40

    weighed: list[Path] = []
    monkeypatch.setattr(
        completion_notes, "_bytes", lambda part: weighed.append(part) or len(weighed)
    )
    with pytest.raises(completion_notes.SaveFailed, match="cancelled"):
        completion_notes.collect_notes(tmp_path, 2, [], Cancelled())
    assert Cancelled.pauses[0] < 0.01
    assert Cancelled.pauses[-1] == 1.0
    assert len(weighed) == 1


def test_a_failure_in_what_the_caller_passed_is_told(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    saver = CheckpointSaver(store, 0, 1, token)
    saver.start(small(1), store.stage(1, token), {"step": 1, "no such field": 1})
    saver.wait()
    assert "no such field" in saver.problem


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_what_could_not_be_read_back_is_not_saved(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    mark = tmp_path / "executed"
    for content in (Bomb(mark), {"a": [Bomb(mark)]}, {"loss": Fraction(1, 2)}):
        [said] = save(store, token, 1, [CheckpointState({}, state=content)])
        assert "'state' holds more than tensors and plain containers" in said
        assert "add_safe_globals" not in said  # which would be to trust the file
    assert "fractions" in said
    assert names(store) == []
    assert not mark.exists()


@pytest.mark.parametrize("write", [torch.save, pickle.dump])
def test_a_pickle_in_place_of_a_blob_is_not_run(tmp_path: Path, write: Any) -> None:
    store, token = new_store(tmp_path)
    mark = tmp_path / "executed"
    bomb = io.BytesIO()
    write({"a": Bomb(mark)}, bomb)
    row = torch.frombuffer(bytearray(bomb.getvalue()), dtype=torch.uint8)
    assert save(store, token, 1, [CheckpointState({"state": row})]) == [
        ""
    ]  # all checksums are right
    with pytest.raises(BrokenCheckpoint, match="more than tensors and plain containers"):
        CheckpointReader(store.folder / "latest").blob("state")
    assert not mark.exists()


def test_old_kinds_of_blobs_never_reach_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch before 2.6 runs code that it finds in a tar file, also with weights_only."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    for kind in (tarfile.PAX_FORMAT, None):
        old = io.BytesIO()
        if kind is None:
            torch.save({"a": 1}, old, _use_new_zipfile_serialization=False)
        else:
            tarfile.open(fileobj=old, mode="w", format=kind).close()
        row = torch.frombuffer(bytearray(old.getvalue()), dtype=torch.uint8)
        with pytest.raises(ValueError, match=r"not in torch\.save's zip format"):
            unpack_blob(row)


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(
        Manifest(step=1, files={"../secret": {"bytes": 1, "crc32": "00000000"}}).to_json()
    )
    assert "not a file of this folder" in find_problems(tmp_path)[0]


def test_a_shard_cut_short_is_an_error_not_a_crash(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1)
    path = (store.folder / "latest").resolve() / "rank-00000.safetensors"
    for length in (0, 5, 100, path.stat().st_size - 1):
        os.truncate(path, length)
        with pytest.raises(BrokenCheckpoint):
            CheckpointReader(path.parent).tensor("rank.0")
