"""On a GPU the marks are events: the same keys, the same bits, and nothing that waits."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from trainer_rig import quiet, train_lines  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.train.monitoring.profiled_steps import SECONDS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]

PARTS = ("data", "forward", "backward", "communication", "optimizer", "checkpoint", "other")


CYCLES = 20_000_000


class Asleep(nn.Module):
    """Keeps the device busy for some milliseconds, and the host for none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        torch.cuda._sleep(CYCLES)
        return self.layer(x)


def asleep_seconds() -> float:
    """At the pace of a GPU that has woken up: the cycles of a cold one are longer."""
    return min(_asleep_once() for _ in range(20))


def _asleep_once() -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    torch.cuda._sleep(CYCLES)
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last) / 1000)


def trained(model: Any = None, **fields: Any) -> Any:
    torch.manual_seed(0)
    if model is None:
        model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 8))
    x = torch.randn(1000, 64)
    given = {"epochs": 2, "log_every": 5, "deterministic": True, **fields}
    config = quiet(compute_setup="gpu", compile=False, **given)
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()), config)
    trainer.fit(DataLoader(TensorDataset(x, x[:, :8]), 20))
    return trainer


def test_the_parts_of_a_step_add_up_to_it() -> None:
    row = train_lines(trained(peak_flops=1e15))[-1]
    total = sum(row[f"{name}_seconds"] for name in PARTS)
    assert total == pytest.approx(row["step_seconds"], rel=1e-3)
    assert min(row[f"{name}_seconds"] for name in PARTS) >= 0
    assert min(row[f"{name}_seconds"] for name in ("forward", "backward", "optimizer")) > 0
    exact = 2 * 64 * 512 * 2 + 2 * 512 * 8 * 3  # the data needs no gradient
    assert row["flops_per_second"] / row["samples_per_second"] == pytest.approx(exact, rel=1e-3)


def test_each_line_has_the_device_s_time_however_far_the_host_is_ahead() -> None:
    seconds, began = asleep_seconds(), time.perf_counter()
    rows = train_lines(trained(Asleep(), epochs=1, checkpoint=False))
    wall = time.perf_counter() - began
    assert [row["step"] for row in rows] == [*range(5, 51, 5)]
    rows = [row for row in rows if "step_seconds" in row]
    assert len(rows) >= 8  # by the first ones the device may have done nothing yet
    for row in rows:
        assert row["step_seconds"] >= 0.8 * seconds
        assert row["samples_per_second"] * row["step_seconds"] == pytest.approx(20, rel=1e-3)
    for row in rows[1:]:
        assert row["forward_seconds"] >= 0.8 * seconds
    assert median(row["step_seconds"] for row in rows) * 50 <= wall


def test_steps_that_are_under_way_at_a_save_are_steps() -> None:
    seconds = asleep_seconds()
    rows = train_lines(trained(Asleep(), epochs=1, checkpoint_every_steps=5))
    held = [each for row in rows if (each := row.get("checkpoint_seconds", 0)) > 0]
    assert held
    assert median(held) < 0.5 * seconds


@pytest.mark.parametrize(
    "fields", [{}, {"precision": "bf16"}, {"precision": "fp16", "accumulate": 2}]
)
def test_marks_and_counting_change_no_bit(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECONDS, "cuda", 0.0)
    marked = trained(peak_flops=1e15, **fields).model.state_dict()
    monkeypatch.setenv("ALLRANKS_TIMING", "off")
    plain = trained(**fields).model.state_dict()
    for name, value in marked.items():
        assert torch.equal(value, plain[name]), name
