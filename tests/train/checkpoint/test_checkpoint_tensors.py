"""Whatever is saved, by however many ranks, comes back bit by bit."""

from __future__ import annotations

import gc
import math
import tempfile
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_rig import new_store, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.errors import UsageError
from allranks.train.checkpoint import staging
from allranks.train.checkpoint import write_plan as planning
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader
from allranks.train.checkpoint.safetensors_file import (
    DTYPES,
    TensorEntry,
    byte_view,
    dtype_name,
    header,
    lay_out,
    write_file,
)
from allranks.train.checkpoint.valid_checkpoints import find_problems
from allranks.train.checkpoint.write_plan import (
    CheckpointState,
    FlatShard,
    boxes,
    distribute_tensors,
)

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)
QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def noise(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bits, so that nan and minus zero are among the values."""
    count = math.prod(shape)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    return (
        torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
        .view(dtype)
        .reshape(shape)
    )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(byte_view(a), byte_view(b))


@given(st.lists(st.tuples(SHAPES, st.sampled_from([*DTYPES])), max_size=6), st.integers(1, 5))
@QUICK
def test_whole_tensors_come_back_from_any_number_of_ranks(
    kinds: list[tuple[tuple[int, ...], str]], size: int
) -> None:
    tensors = {f"model.{i}": noise(shape, DTYPES[word]) for i, (shape, word) in enumerate(kinds)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SMALLEST_CUT", 8)  # so that small tensors are cut, too,
        patch.setattr(staging, "SLAB", 256)  # and cross several blocks of memory
        store, token = new_store(Path(folder))
        ranks = [CheckpointState(tensors, state={"n": size}, own={"rank": r}) for r in range(size)]
        assert save(store, token, 3, ranks) == [""] * size
        reader = CheckpointReader(store.folder / "latest")
        assert find_problems(reader.path) == []
        assert all(same(reader.tensor(key), value) for key, value in tensors.items())
        assert [reader.blob(f"rank.{r}") for r in range(size)] == [{"rank": r} for r in range(size)]
        assert reader.blob("state") == {"n": size}


@given(SHAPES.filter(lambda shape: math.prod(shape) > 0), st.integers(1, 4), st.data())
@QUICK
def test_parts_of_flattened_tensors_come_back(
    shape: tuple[int, ...], size: int, data: st.DataObject
) -> None:
    value = noise(shape, torch.float32)
    count = value.numel()
    cuts = sorted(data.draw(st.lists(st.integers(0, count), min_size=size - 1, max_size=size - 1)))
    edges = [0, *cuts, count]
    box = [data.draw(st.integers(0, n - 1)) for n in shape]
    length = [data.draw(st.integers(1, n - a)) for a, n in zip(box, shape, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        store, token = new_store(Path(folder))
        ranks = [
            CheckpointState({"w": FlatShard(value.reshape(-1)[a:b], shape, a)}, everywhere=False)
            for a, b in pairwise(edges)
        ]
        assert save(store, token, 1, ranks) == [""] * size
        reader = CheckpointReader(store.folder / "latest")
        assert same(reader.tensor("w"), value)
        window = tuple(slice(a, a + n) for a, n in zip(box, length, strict=True))
        assert same(reader.part("w", box, length), value[window])


@given(SHAPES, st.data())
@QUICK
def test_boxes_cover_a_flat_shard_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    numbers = torch.arange(count).reshape(shape)
    found: list[int] = []
    for offsets, box in boxes(shape, start, stop - start):
        window = tuple(slice(a, a + n) for a, n in zip(offsets, box, strict=True))
        found += numbers[window].reshape(-1).tolist()
    assert found == [*range(start, stop)]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_dealing_is_complete_and_fair(size: int) -> None:
    whole = {str(i): torch.empty(n, 1024) for i, n in enumerate([4096, 1, 7, 512, 513, 2000, 1])}
    loads = [0] * size
    for key, cuts in distribute_tensors(whole, size).items():
        rows = []
        for first, last, rank in cuts:
            taken = range(len(whole[key]))[first:last]
            rows += taken
            loads[rank] += len(taken)
        assert sorted(rows) == [*range(len(whole[key]))]
    assert max(loads) <= 1.35 * sum(loads) / size


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    weight = torch.randn(50, 40)
    tensors = {"model.embed": weight, "model.head": weight, "model.rows": weight[:10]}
    store, token = new_store(tmp_path)
    assert save(store, token, 1, [CheckpointState(tensors)] * 2) == ["", ""]
    reader = CheckpointReader(store.folder / "latest")
    assert reader.manifest.tensors["model.head"] == {"same_as": "model.embed"}
    assert all(same(reader.tensor(key), value) for key, value in tensors.items())
    assert reader.manifest.bytes < 1.5 * weight.nbytes
    assert CheckpointState(tensors).total_bytes(2) == weight.nbytes + tensors["model.rows"].nbytes


def test_the_copy_is_taken_before_start_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from allranks.train.checkpoint.async_writer import CheckpointSaver

    store, token = new_store(tmp_path)
    monkeypatch.setattr(staging, "SLAB", 1 << 16)
    saver = CheckpointSaver(store, 0, 1, token)
    for step, rows in enumerate([300, 10, 301, 600, 20], start=1):  # the memory is used again
        weight = torch.full((rows, 1000), float(step))
        saver.start(CheckpointState({"w": weight}), store.stage(step, token), {"step": step})
        weight.fill_(-1)
    saver.wait()
    assert saver.problem == ""
    found = [CheckpointReader(each.path).tensor("w") for each in store.list_saved()]
    assert [each.unique().tolist() for each in found] == [[5.0], [4.0], [3.0]]
    assert [len(each) for each in found] == [20, 600, 301]


def test_the_memory_of_the_copies_is_given_back(tmp_path: Path) -> None:
    from allranks.train.checkpoint.async_writer import CheckpointSaver

    store, token = new_store(tmp_path)
    saver = CheckpointSaver(store, 0, 1, token)
    saver.start(CheckpointState({"w": torch.ones(5000)}), store.stage(1, token), {"step": 1})
    memory = weakref.ref(saver._staging)
    saver.close()  # the save under way has it still
    saver.wait()
    assert saver.problem == ""
    gc.collect()
    assert memory() is None
    saver.start(CheckpointState({"w": torch.ones(5000)}), store.stage(2, token), {"step": 2})
    saver.wait()
    assert [find_problems(each.path) for each in store.list_saved()] == [[], []]


class Elsewhere(torch.Tensor):
    """As on a device whose memory cannot be read by its address."""

    device = property(lambda self: torch.device("xpu"))  # type: ignore[assignment]
    fetched = 0

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        Elsewhere.fetched += 1
        return self.as_subclass(torch.Tensor)


def test_tensors_of_other_devices_are_fetched() -> None:
    value = torch.arange(6.0)
    staged = staging.Staging()
    staged.copy([(TensorEntry("w", "F32", (6,)), value.as_subclass(Elsewhere))])
    assert Elsewhere.fetched == 1
    [part] = staged.parts()
    assert bytes(part) == value.numpy().tobytes()


def test_copies_of_views_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.arange(60.0).reshape(10, 6)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal most
        row = byte_view(tensor)
        if row.data_ptr() != tensor.data_ptr():
            alive.append(weakref.ref(row))
        most = max(most, sum(each() is not None for each in alive))
        return row

    monkeypatch.setattr(staging, "byte_view", counted)
    entries = [(TensorEntry(str(i), "F32", (6, 10), 240 * i), base.T) for i in range(5)]
    staged = staging.Staging()
    staged.copy(entries)
    assert most == 1
    assert b"".join(staged.parts()) == 5 * base.T.contiguous().numpy().tobytes()


def test_views_and_strides_are_saved_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    turn = torch.complex(base, base)
    tensors = {
        "t": base.T,
        "s": base[::2, 1::2],
        "e": base[:1].expand(3, 6),
        "c": turn,
        "d": turn.conj(),
    }
    tensors["p"] = torch.nn.Parameter(base)
    store, token = new_store(tmp_path)
    assert save(store, token, 1, [CheckpointState(tensors)]) == [""]
    reader = CheckpointReader(store.folder / "latest")
    assert all(torch.equal(reader.tensor(key), value) for key, value in tensors.items())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.eye(2).to_sparse(), "Only dense"),
        (torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "quantized"),
        (torch.empty(2, device="meta"), "meta"),
    ],
)
def test_what_has_no_plain_bytes_is_refused(tmp_path: Path, value: Any, words: str) -> None:
    from allranks.train.checkpoint.async_writer import CheckpointSaver

    store, token = new_store(tmp_path)
    with pytest.raises(UsageError, match=words):
        CheckpointSaver(store, 0, 1, token).start(
            CheckpointState({"w": value}), store.stage(1, token), {"step": 1}
        )


def test_the_safetensors_package_reads_our_files(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch")
    known = {dtype_name(dtype) for dtype in package._TYPES.values()}
    tensors = {word: noise((2, 3), DTYPES[word]) for word in known} | {
        "scalar": noise((), torch.float64),
        "empty": noise((0, 3), torch.int8),
    }
    entries = [TensorEntry(key, dtype_name(v.dtype), tuple(v.shape)) for key, v in tensors.items()]
    placed = lay_out(entries)
    path = tmp_path / "a.safetensors"
    write_file(path, (header(placed), *(byte_view(tensors[each.name]).numpy() for each in placed)))
    loaded = package.load_file(path)
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[key], value) for key, value in tensors.items())
