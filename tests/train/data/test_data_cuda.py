"""What only a GPU shows: the copies ahead of the step, and datasets that stay on the device."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from data_rig import Plain  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from allranks.train.data import LoaderOptions, distribute_loader, to_dataloader  # noqa: E402
from allranks.train.data import tensor_loader as tensors  # noqa: E402


def run(loader: Any, device: str, **options: Any) -> list[Any]:
    distributed = distribute_loader(
        loader, rank=0, size=1, device=device, options=LoaderOptions(**options)
    )
    found = []
    for batch, weight in distributed.epoch(1):
        tensor = batch[0] if isinstance(batch, list) else batch
        assert tensor.device.type == device
        busy = torch.rand(512, 512, device=device)
        for _ in range(20):  # keeps the step's stream behind the copies
            busy = busy @ busy / 512
        found.append(((tensor + 0 * busy.sum()).cpu(), weight))
    distributed.close()
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) and s == t for (a, s), (b, t) in pairs)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_loaders_give_the_same_on_both_devices(workers: int, dtype: Any) -> None:
    loader = DataLoader(Plain(50), batch_size=4, shuffle=True, num_workers=workers)
    assert same(run(loader, "cuda", dtype=dtype), run(loader, "cpu", dtype=dtype))


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_tensors(resident: bool, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not resident:
        monkeypatch.setattr(tensors, "RESIDENT_BYTES", 0)
    data = TensorDataset(torch.rand(1001, 64))
    loader = DataLoader(data, batch_size=8, shuffle=shuffle)
    distributed = distribute_loader(loader, rank=0, size=1, device="cuda")
    assert any("is kept on" in note for note in distributed.notes) is resident
    assert same(run(loader, "cuda", dtype=torch.float64), run(loader, "cpu", dtype=torch.float64))
    list(distributed.epoch(0))
    assert distributed.check().ok


def test_streams_and_endless_tensors() -> None:
    batches = [torch.rand(3, 4) for _ in range(9)]
    assert same(run(batches, "cuda", prefetch=4), run(batches, "cpu"))
    loader = to_dataloader(torch.arange(9.0), batch_size=4, infinite=True)
    gpu, cpu = (
        distribute_loader(loader, rank=0, size=1, device=d).epoch(0) for d in ("cuda", "cpu")
    )
    assert all(torch.equal(next(gpu)[0][0].cpu(), next(cpu)[0][0]) for _ in range(6))


def test_tensors_that_are_on_the_gpu_already() -> None:
    loader = DataLoader(TensorDataset(torch.arange(20.0, device="cuda")), batch_size=3)
    assert [v for tensor, _ in run(loader, "cuda") for v in tensor.tolist()] == list(range(20))
