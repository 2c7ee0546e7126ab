"""On a GPU the marks are events: the same keys, the same bits, and nothing that waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from trainer_rig import quiet  # noqa: E402

from allranks import Trainer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]

PARTS = ("data", "forward", "backward", "communication", "optimizer", "checkpoint", "other")


def trained(**fields: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 8))
    x = torch.randn(1000, 64)
    config = quiet(
        epochs=2, log_every=5, compute_setup="gpu", compile=False, deterministic=True, **fields
    )
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()), config)
    trainer.fit(DataLoader(TensorDataset(x, x[:, :8]), 20))
    return trainer


def last_line(trainer: Any) -> dict[str, Any]:
    rows = map(json.loads, (trainer.folder / "metrics.jsonl").read_text().splitlines())
    found: dict[str, Any] = [row for row in rows if row["kind"] == "train"][-1]
    return found


def test_the_parts_of_a_step_add_up_to_it() -> None:
    row = last_line(trained(peak_flops=1e15))
    total = sum(row[f"{name}_seconds"] for name in PARTS)
    assert total == pytest.approx(row["step_seconds"], rel=1e-3)
    assert min(row[f"{name}_seconds"] for name in PARTS) >= 0
    assert min(row[f"{name}_seconds"] for name in ("forward", "backward", "optimizer")) > 0
    exact = 2 * 64 * 512 * 2 + 2 * 512 * 8 * 3  # the data needs no gradient
    assert row["flops_per_second"] / row["samples_per_second"] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    "fields", [{}, {"precision": "bf16"}, {"precision": "fp16", "accumulate": 2}]
)
def test_marks_and_counting_change_no_bit(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allranks.train.sampling.SECONDS", 0.0)
    marked = trained(peak_flops=1e15, **fields).model.state_dict()
    monkeypatch.setenv("ALLRANKS_TIMING", "off")
    plain = trained(**fields).model.state_dict()
    for name, value in marked.items():
        assert torch.equal(value, plain[name]), name
