"""Which strategy ``auto`` takes, and the sentence that says why."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from strategies_rig import CPU, a_world  # noqa: E402
from torch import nn  # noqa: E402

from allranks.errors import UsageError  # noqa: E402
from allranks.train.strategies import DDP, FSDP, Single, StrategyOptions, choose_strategy  # noqa: E402

pytestmark = pytest.mark.torch

GPU = torch.device("cuda", 0)


def big(parameters: float) -> nn.Module:
    """A model of that size that takes no memory."""
    return nn.Linear(1000, int(parameters / 1000), bias=False, device="meta")


def chosen(
    name: Any,
    model: nn.Module,
    optimizer: Any = None,
    size: int = 4,
    device: Any = GPU,
    **options: Any,
) -> tuple[type, str]:
    optimizers = [optimizer] if optimizer else []
    strategy, reason = choose_strategy(
        name, model, optimizers, a_world(0, size), device, StrategyOptions(**options)
    )
    return type(strategy), reason


@pytest.fixture(autouse=True)
def an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choose_strategy.__globals__, "_device_memory", lambda device: 139.8 * 2**30)


def test_what_fits_trains_by_ddp() -> None:
    model = big(124e6)
    kind, reason = chosen("auto", model, torch.optim.AdamW(model.parameters()))
    assert kind is DDP
    assert reason == "124 M parameters need 1.85 GiB with AdamW, the GPU has 140 GiB: ddp"


def test_what_does_not_fit_is_sharded() -> None:
    model = big(8e9)
    kind, reason = chosen("auto", model, torch.optim.Adam(model.parameters()))
    assert kind is FSDP
    assert reason.startswith("8 B parameters need 119 GiB with Adam, the GPU has 140 GiB")
    assert reason.endswith("fsdp")


@pytest.mark.parametrize(
    ("optimizer", "options", "gib"),
    [
        ("SGD", {"lr": 0.1}, 8),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, 12),
        ("RMSprop", {"centered": True}, 16),
        ("AdamW", {"amsgrad": True}, 20),
        ("Adagrad", {}, 12),
        ("LBFGS", {"history_size": 3}, 40),
    ],
)
def test_the_optimizer_counts(optimizer: str, options: dict[str, Any], gib: int) -> None:
    model = nn.Linear(2**15, 2**15, bias=False, device="meta")  # 2**30 parameters
    made = getattr(torch.optim, optimizer)(model.parameters(), **options)
    assert f"need {gib} GiB with {optimizer}" in chosen("auto", model, made)[1]
    assert f"need {gib + 2} GiB" in chosen("auto", model, made, precision="bf16")[1]


def test_one_process_and_cpus_need_no_weighing() -> None:
    assert chosen("auto", big(8e9), size=1) == (Single, "one process: single")
    assert chosen("auto", big(8e9), device=CPU) == (DDP, "4 ranks on CPUs: ddp")


def test_a_name_or_a_strategy_is_taken_as_asked() -> None:
    assert chosen("FSDP", big(1e6), size=1) == (FSDP, "fsdp: as asked")
    given = DDP(find_unused_parameters=True)
    made, reason = choose_strategy(given, big(1e6), [], a_world(0, 2), CPU, StrategyOptions())
    assert made is given
    assert reason == "ddp: as given"


@pytest.mark.parametrize("single", ["single", Single()])
def test_single_with_ranks_would_train_separately(single: Any) -> None:
    with pytest.raises(UsageError, match="with 4 ranks: each would train a separate model"):
        chosen(single, big(1e6))
    assert chosen(single, big(1e6), size=1)[0] is Single


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    known = "single, ddp, fsdp, deepspeed, horovod, auto"
    with pytest.raises(UsageError, match=rf"one of {known}\. Did you mean 'fsdp'\?"):
        chosen("fsdp2", big(1e6))
    with pytest.raises(UsageError, match=rf"must be one of {known}\.$"):
        chosen("megatron", big(1e6))
