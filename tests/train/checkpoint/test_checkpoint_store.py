"""The folder: what is published, kept, set aside, and by whom."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_rig import flip, names, new_store, save, save_steps, small

from allranks.errors import UsageError
from allranks.train.checkpoint import checkpoint_folder as storing
from allranks.train.checkpoint import durable_io, valid_checkpoints
from allranks.train.checkpoint.async_writer import CheckpointSaver
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore, OwnershipLost
from allranks.train.checkpoint.checkpoint_list import list_checkpoints
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.durable_io import UnreadableCheckpoint
from allranks.train.checkpoint.manifest import FORMAT, BrokenCheckpoint, Manifest, NewerCheckpoint
from allranks.train.checkpoint.valid_checkpoints import (
    find_newest_valid,
    find_problems,
    resolve_resume_path,
)
from allranks.train.checkpoint.write_plan import CheckpointState

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def publish(
    store: CheckpointStore, token: str, step: int, minute: int = 0, links: tuple[str, ...] = ()
) -> Path:
    """A checkpoint without tensors, saved at a given minute."""
    time = (BEGIN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return store.publish(store.stage(step, token), Manifest(step=step, time=time), token, links)


def test_a_manifest_reads_as_it_was_written(tmp_path: Path) -> None:
    metrics = {"loss": 0.1 + 0.2, "worst": float("inf"), "broken": float("nan")}
    manifest = Manifest(step=7, epoch=2, samples=99, strategy="fsdp", metrics=metrics)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    found = Manifest.read(tmp_path)
    assert (found.step, found.epoch, found.samples, found.strategy) == (7, 2, 99, "fsdp")
    assert found.metrics == {"loss": 0.1 + 0.2, "worst": None, "broken": None}
    assert found.format == FORMAT


def test_the_newest_is_by_step_then_by_save(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    for step in (5, 10, 5, 5):
        publish(store, token, step)
    assert names(store) == ["step-00000010", "step-00000005-3", "step-00000005-2", "step-00000005"]
    assert store.prune(keep=2, keep_every=None) == ["step-00000005-2", "step-00000005"]
    assert publish(store, token, 5).name == "step-00000005-4"  # a freed number is not used again
    assert store.links() == {"latest": "step-00000005-4"}


def test_retention_keeps_the_last_the_named_and_one_per_span(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    for step in range(1, 13):
        links = ("best",) if step in (2, 3) else ("mine",) if step == 5 else ()
        publish(store, token, step, minute=10 * step, links=links)
        store.prune(keep=2, keep_every=40 * 60)
    kept = [saved.step for saved in store.list_saved()]
    assert kept == [12, 11, 9, 5, 3, 1]  # 1, 5 and 9 are 40 minutes apart; 3 is the best, 5 is mine
    assert store.links() == {
        "best": "step-00000003",
        "latest": "step-00000012",
        "mine": "step-00000005",
    }
    store.prune(keep=1, keep_every=None)
    assert [saved.step for saved in store.list_saved()] == [12, 5, 3]


def test_a_start_clears_what_another_left_and_the_other_cannot_publish(tmp_path: Path) -> None:
    store, old = new_store(tmp_path)
    publish(store, old, 1)
    staged, late = store.stage(2, old), store.stage(3, old)
    (late / "rank-00000.safetensors").write_text("half")
    (store.folder / ".gone-step-00000000-1").mkdir()
    new = store.take_over({"attempt": 2})
    assert not store.is_owned_by(old)
    assert store.is_owned_by(new)
    assert store.owner()["attempt"] == 2
    assert [path.name for path in store.folder.glob(".*")] == []
    with pytest.raises(FileNotFoundError):
        store.publish(staged, Manifest(step=2), old)
    with pytest.raises(OwnershipLost, match=r"step-00000004 is not saved: another attempt .* owns"):
        store.publish(store.stage(4, old), Manifest(step=4), old)
    assert names(store) == ["step-00000001"]


def test_all_is_on_the_disk_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    store, token = new_store(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    assert save(store, token, 1, [small(1)] * 2) == ["", ""]
    files = sorted(name for name in synced if name.endswith(".safetensors"))
    assert files == ["rank-00000.safetensors", "rank-00001.safetensors"]
    part = next(name for name in synced if name.endswith(".part"))
    before = synced[: synced.index(part)]
    assert {*files} < {*before}
    assert any("manifest.json" in name for name in before)
    assert synced[synced.index(part) + 1 :] == ["checkpoints", "checkpoints"]  # the name, the links


def test_a_saver_that_was_overtaken_says_so(tmp_path: Path) -> None:
    store, old = new_store(tmp_path)
    part = store.stage(1, old)
    store.take_over({})
    saver = CheckpointSaver(store, 0, 1, old)
    saver.start(small(1), part, {"step": 1})
    saver.wait()
    assert "another attempt" in saver.problem
    assert saver.taken_over
    assert names(store) == []


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: flip(path / "rank-00000.safetensors", -3), "checksum differs"),
        (lambda path: flip(path / "rank-00000.safetensors", 20), "checksum differs"),
        (lambda path: flip(path / "manifest.json", 14), "manifest.json"),
        (lambda path: (path / "manifest.json").unlink(), "no manifest.json"),
        (lambda path: (path / "manifest.json").write_text("{}"), "checksum"),
        (lambda path: (path / "rank-00000.safetensors").unlink(), "is missing"),
        (lambda path: (path / "rank-00000.safetensors").open("r+").truncate(200), "has 200 bytes"),
    ],
)
def test_a_broken_one_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, harm: object, words: str
) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2, 3, links=["best"])
    harm(store.folder / "step-00000003")  # type: ignore[operator]
    warnings: list[str] = []
    found = find_newest_valid(store, find_problems, warnings.append)
    assert found is not None
    assert found.step == 2
    assert CheckpointReader(found.path).blob("state") == {"step": 2}
    assert words in warnings[0]
    assert "the previous one is used" in warnings[0]
    [(path, reason)] = store.list_quarantined()
    assert path.name == "step-00000003"
    assert words in reason
    assert store.links() == {"latest": "step-00000002"}  # best was the broken one
    assert find_newest_valid(store, find_problems, warnings.append) == found
    assert len(warnings) == 1


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1)
    path = store.folder / "step-00000001"
    whole = (path / "manifest.json").read_bytes()
    for at in [*range(0, len(whole) - 40, 5), *range(len(whole) - 40, len(whole))]:
        flip(path / "manifest.json", at, bit=at % 8)
        found = find_problems(path, sizes_only=True)
        (path / "manifest.json").write_bytes(whole)
        # After the checksum's last digit only space may change, which means the same.
        assert found or at >= len(whole) - 4, f"byte {at} is {whole[at : at + 1]!r}"


def test_none_there_means_none_and_none_sound_is_an_error(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    assert find_newest_valid(store, find_problems, print) is None
    save_steps(store, token, 1, 2)
    for step in (1, 2):
        flip(store.folder / f"step-0000000{step}" / "rank-00000.safetensors", -1)
    for _ in range(2):  # nothing was moved: the next start stops as well
        with pytest.raises(UsageError, match=r"(?s)none of the 2 is valid.*checksum.*resume=False"):
            find_newest_valid(store, find_problems, print)
    assert names(store) == ["step-00000002", "step-00000001"]
    assert store.list_quarantined() == []


def test_twice_broken_keeps_both(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1)
    for _ in range(2):
        save_steps(store, token, 2)
        (store.folder / "step-00000002" / "manifest.json").unlink()
        assert find_newest_valid(store, find_problems, lambda text: None) is not None
    assert [path.name for path, _ in store.list_quarantined()] == [
        "step-00000002",
        "step-00000002.2",
    ]
    assert store.links() == {"latest": "step-00000001"}


class Stale:
    """A file system that does not answer so many times."""

    def __init__(self, real: Any, times: int) -> None:
        self.real, self.left = real, times

    def __call__(self, path: Path) -> Any:
        if self.left and "step-00000002" in str(path):
            self.left -= 1
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return self.real(path)


@pytest.fixture(params=["manifest", "shard"])
def stale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    def begin(times: int) -> None:
        monkeypatch.setattr(durable_io, "RETRY_PAUSES", (0.0, 0.0))
        if request.param == "shard":
            monkeypatch.setattr(
                valid_checkpoints, "checksum", Stale(valid_checkpoints.checksum, times)
            )
        else:
            reading = Stale(Path.read_bytes, times)
            monkeypatch.setattr(Path, "read_bytes", lambda path: reading(path))

    return begin


def test_what_cannot_be_read_now_is_read_again(tmp_path: Path, stale: Any) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2)
    stale(2)
    found = find_newest_valid(store, find_problems, print)
    assert found is not None
    assert found.step == 2


def test_what_stays_unreadable_is_not_taken_for_broken(tmp_path: Path, stale: Any) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2)
    stale(1000)
    for look in (
        lambda: find_newest_valid(store, find_problems, print),
        lambda: resolve_resume_path(str(tmp_path)),
    ):
        with pytest.raises(
            UnreadableCheckpoint, match=r"(?s)cannot be read now.*Stale file handle.*mv "
        ):
            look()
    assert names(store) == ["step-00000002", "step-00000001"]
    assert store.list_quarantined() == []
    assert [row.state for row in list_checkpoints(store, verify=True)] == ["unreadable", "verified"]
    assert "step-00000002" not in store.prune(keep=1, keep_every=None)


def test_what_fails_after_the_rename_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path, *_: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    store, token = new_store(tmp_path)
    save_steps(store, token, 1)
    monkeypatch.setattr(storing, "remove_folder", busy)
    monkeypatch.setattr(storing, "replace_link", busy)
    warnings: list[str] = []
    saver = CheckpointSaver(store, 0, 1, token, warn=warnings.append)
    done: list[Any] = []
    for step in (2, 3):
        saver.start(
            small(step), store.stage(step, token), {"step": step}, done.append, links=["a"], keep=1
        )
        saver.wait()
        assert saver.problem == ""
    assert [saved.step for saved in done] == [2, 3]
    assert names(store) == ["step-00000003", "step-00000002", "step-00000001"]
    assert len(warnings) == 2  # each kind once
    assert "links (a, latest)" in warnings[0]
    assert "cannot be removed: Device or resource busy" in warnings[1]


def test_one_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, token = new_store(tmp_path)
    for step in (1, 2, 3):
        publish(store, token, step)
    real = storing.remove_folder

    def busy(path: Path) -> None:
        if path.name == "step-00000002":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        real(path)

    monkeypatch.setattr(storing, "remove_folder", busy)
    with pytest.raises(OSError, match="busy"):
        store.prune(keep=1, keep_every=None)
    assert names(store) == ["step-00000003", "step-00000002"]


def test_a_later_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2)
    newer = Manifest(step=2, format=FORMAT + 1).to_json()
    (store.folder / "step-00000002" / "manifest.json").write_text(newer)
    with pytest.raises(NewerCheckpoint, match="pip install --upgrade allranks"):
        find_newest_valid(store, find_problems, print)
    assert names(store) == ["step-00000002", "step-00000001"]


def test_what_resume_may_name(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2, links=["best"])
    folder = store.folder
    for word in (tmp_path, folder, folder / "latest", folder / "best", folder / "step-00000002"):
        assert resolve_resume_path(str(word)) == folder / "step-00000002"
    flip(folder / "step-00000002" / "rank-00000.safetensors", -1)
    warnings: list[str] = []
    assert resolve_resume_path(str(tmp_path), say=warnings.append) == folder / "step-00000001"
    assert "skipped" in warnings[0]
    with pytest.raises(BrokenCheckpoint, match="Use another one"):
        resolve_resume_path(str(folder / "latest"))
    assert names(store) == ["step-00000002", "step-00000001"]  # another's folder: nothing is moved


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pt", r"torch\.load\(.*weights_only=True"),
        ("model.ckpt", "Convert it once"),
        ("model.bin", "runs code"),
        ("model.safetensors", "load_file"),
        ("nothing", "no such folder"),
        ("empty", "there is no checkpoint"),
    ],
)
def test_what_resume_may_not_name(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    if "." in name:
        (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(UsageError, match=words):
        resolve_resume_path(str(tmp_path / name))


def test_an_unknown_step_says_what_is_there(tmp_path: Path) -> None:
    store, token = new_store(tmp_path)
    save_steps(store, token, 1, 2)
    with pytest.raises(UsageError, match="There are: step-00000002, step-00000001"):
        resolve_resume_path(str(store.folder / "step-00000003"))


def test_a_gap_is_never_published(tmp_path: Path) -> None:
    """Ranks that do not hold the same tensors deal them out differently."""
    store, token = new_store(tmp_path)
    here, there = torch.ones(2_000_000), torch.ones(1_000_000)
    ranks = [CheckpointState({"a": here, "b": there}), CheckpointState({"b": there})]
    assert "are not complete" in save(store, token, 1, ranks)[0]
    assert names(store) == []
    assert [*store.folder.glob(".*")] == []
