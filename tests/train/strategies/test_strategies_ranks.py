"""N ranks train what one rank trains, and their states are each other's. Real gloo processes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from strategies_rig import CPU, Objective, TinyGPT, Training, over_ranks, same  # noqa: E402
from torch import nn  # noqa: E402

from allranks.runtime.world import World  # noqa: E402
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader  # noqa: E402
from allranks.train.strategies import DDP, FSDP, StrategyOptions  # noqa: E402

pytestmark = pytest.mark.torch

MANY = ["ddp", "fsdp"]
SAME = [
    (kind, optimizer, parts) for kind in MANY for optimizer in ("adamw", "sgd") for parts in (1, 2)
]
STEPS = range(4)


def trained(world: World, kind: str, optimizer: str, parts: int, **options: Any) -> dict[str, Any]:
    training = Training(kind, world, optimizer=optimizer, **options)
    norms = training.run(STEPS, parts)
    result = {"norms": norms, **training.states()}
    training.strategy.close()
    return result


def round_trip(world: World) -> dict[str, Any]:
    """ddp for two steps, fsdp for two; the rest is for one process."""
    first = Training("ddp", world)
    first.run(range(2))
    second = Training("fsdp", world)
    look(second)
    second.load(first.saved())
    second.run(range(2, 4))
    look(second)
    saved = second.saved()
    return {file.name: file.read_bytes() for file in saved.iterdir()}


def look(training: Training) -> None:
    """A forward pass alone leaves FSDP's root whole: states must not mind."""
    with torch.no_grad():
        training.call(torch.zeros(1, 2, dtype=torch.long))


def back_to_ddp(world: World) -> dict[str, Any]:
    first = Training("fsdp", world, optimizer="sgd")
    first.run(range(2))
    second = Training("ddp", world, optimizer="sgd")
    second.load(first.saved())
    second.run(range(2, 4))
    return second.states()


def state_before_setup(world: World, kind: str) -> dict[str, Any]:
    training = Training(kind, world, before=1)
    training.run(range(1, 3))
    return training.states()


def by_hand(world: World) -> float:
    """Gradients averaged explicitly against those that DDP averaged."""
    one, other = Training("ddp", world), Training("ddp", world)
    one.gradients(0)
    other.strategy.begin_micro_batch(last=False)
    loss, _ = other.call(torch.randint(11, (16, 6), generator=torch.Generator().manual_seed(0))
                         .chunk(world.size)[world.rank])  # fmt: skip
    loss.backward()
    pairs = [*zip(one.call.parameters(), other.call.parameters(), strict=True)]
    apart = max(float((a.grad - b.grad).abs().max()) for a, b in pairs)
    assert apart > 1e-6  # nothing was averaged yet
    other.strategy.reduce_gradients(other.call.parameters())
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs)


def buffers(world: World, kind: str) -> dict[str, Any]:
    """Statistics after a step on data that differs by rank, before and after they are synced."""
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    strategy = {"ddp": DDP, "fsdp": FSDP}[kind]()
    call = strategy.setup(model, [], world=world, device=CPU, options=StrategyOptions())
    call(torch.randn(8, 3, dtype=torch.float64) + world.rank).sum().backward()
    before = spread(model[1].running_mean)
    strategy.sync_buffers()
    after = spread(model[1].running_mean)
    return {"apart": before, "together": after, "names": [*strategy.model_state()]}


def spread(value: torch.Tensor) -> float:
    """How far the ranks are from rank 0."""
    first = value.clone()
    dist.broadcast(first, src=0)
    gap = (value - first).abs().max()
    dist.all_reduce(gap, op=dist.ReduceOp.MAX)
    return float(gap)


def refused(world: World) -> list[str]:
    """Every rank finds out for itself what does not fit, before anything is changed."""
    said = []
    for kind in MANY:
        training = Training(kind, world)
        reader = CheckpointReader(training.saved())
        state = reader.blob("state")
        state["model"].pop("wte.weight")
        state["optimizer"]["param_groups"][0]["params"].pop()
        said.append(training.strategy.model_mismatch(state["model"], reader))
        said.append(training.strategy.optimizer_mismatch(training.optimizer, state["optimizer"]))
    return said


def whole_inside(world: World) -> list[list[int]]:
    training = Training("fsdp", world)
    training.run(range(1))
    with training.strategy.full_parameters():
        inside = training.model.blocks[0].up.weight
        assert not hasattr(inside, "_local_tensor")
        shape = [*inside.shape]
    return [shape, [*training.model.blocks[0].up.weight.to_local().shape]]


def half(world: World, offload: bool) -> dict[str, Any]:
    """bf16: parameters are gathered so, shards and outputs stay fp32, beside fp32 buffers."""
    strategy = FSDP(wrap=["Block"], cpu_offload=offload)
    training = Training(strategy, world, optimizer="sgd", dtype=torch.float32, precision="bf16")
    logits = training.model(torch.zeros(2, 3, dtype=torch.long))
    with strategy.full_parameters():
        inside = training.model.wte.weight.dtype
    training.run(range(3))
    types = {"logits": str(logits.dtype), "inside": str(inside)}
    return {**types, "line": strategy.describe(), **training.states()}


def core_cases() -> dict[str, Any]:
    part = functools.partial
    found: dict[str, Any] = {
        f"{kind} {optimizer} {parts}": part(trained, kind=kind, optimizer=optimizer, parts=parts)
        for kind, optimizer, parts in SAME
    }
    return found | {"round trip": round_trip}


def pair_cases() -> dict[str, Any]:
    part = functools.partial
    found: dict[str, Any] = {}
    for kind in MANY:
        extra = {"kind": kind, "optimizer": "adamw", "parts": 1}
        found[f"{kind} checkpointed"] = part(trained, **extra, activation_checkpointing=True)
        found[f"{kind} own"] = part(trained, **extra, own=True)
        found[f"{kind} state before"] = part(state_before_setup, kind=kind)
        found[f"{kind} buffers"] = part(buffers, kind=kind)
    found |= {"back": back_to_ddp, "by hand": by_hand, "refused": refused, "whole": whole_inside}
    return found | {"half": part(half, offload=False), "offload": part(half, offload=True)}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two ranks do everything in one start."""
    folder = tmp_path_factory.mktemp("ranks2")
    return over_ranks(2, core_cases() | pair_cases(), folder)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ranks4")
    return over_ranks(4, core_cases(), folder)


@pytest.fixture(params=["of_two", "of_four"])
def results(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@functools.cache
def alone(optimizer: str = "adamw", steps: int = 4, before: int = 0, own: bool = False) -> Any:
    """The same training in one process."""
    from strategies_rig import a_world

    training = Training("single", a_world(), optimizer=optimizer, own=own, before=before)
    norms = training.run(range(1, steps) if before else range(steps))
    return {"norms": norms, **training.states()}


@pytest.mark.parametrize(("kind", "optimizer", "parts"), SAME)
def test_many_ranks_train_what_one_trains(
    results: dict[str, Any], kind: str, optimizer: str, parts: int
) -> None:
    same(alone(optimizer), results[f"{kind} {optimizer} {parts}"])


@pytest.mark.parametrize("kind", MANY)
def test_checkpointed_blocks_have_the_same_gradients_and_names(
    of_two: dict[str, Any], kind: str
) -> None:
    same(alone(), of_two[f"{kind} checkpointed"])


@pytest.mark.parametrize("kind", MANY)
def test_an_objective_may_have_parameters_too(of_two: dict[str, Any], kind: str) -> None:
    assert "objective.weight" in str(of_two[f"{kind} own"]["optimizer"]["state"].keys())
    same(alone(own=True), of_two[f"{kind} own"])


@pytest.mark.parametrize("kind", MANY)
def test_an_optimizer_may_have_a_state_before(of_two: dict[str, Any], kind: str) -> None:
    expected = alone(steps=3, before=1)
    same({key: expected[key] for key in ("model", "optimizer")}, of_two[f"{kind} state before"])


@pytest.mark.parametrize("kind", MANY)
def test_buffers_are_synced_from_rank_0(of_two: dict[str, Any], kind: str) -> None:
    found = of_two[f"{kind} buffers"]
    assert found["apart"] > 0.01
    assert found["together"] == 0
    assert "1.running_mean" in found["names"]


def test_states_go_from_ddp_to_fsdp_to_one_process(results: dict[str, Any], tmp_path: Path) -> None:
    from strategies_rig import a_world

    for name, content in results["round trip"].items():
        (tmp_path / name).write_bytes(content)
    last = Training("single", a_world())
    last.load(tmp_path)
    last.run(range(4, 6))
    expected = alone(steps=6)
    same({key: expected[key] for key in ("model", "optimizer")}, last.states())


def test_states_go_from_fsdp_to_ddp(of_two: dict[str, Any]) -> None:
    expected = alone("sgd")
    same({key: expected[key] for key in ("model", "optimizer")}, of_two["back"])


def test_gradients_can_be_averaged_by_hand(of_two: dict[str, Any]) -> None:
    assert of_two["by hand"] < 1e-12


def test_every_rank_hears_that_a_state_does_not_fit(of_two: dict[str, Any]) -> None:
    model, optimizer = of_two["refused"][:2]
    assert "'wte.weight' is missing" in model
    assert "group 0 lacks" in optimizer
    assert of_two["refused"][2:] == [model, optimizer]


def test_parameters_are_whole_inside_full_parameters(of_two: dict[str, Any]) -> None:
    inside, outside = of_two["whole"]
    assert inside == [7, 10]
    assert outside[0] < 7


def test_tied_weights_stay_tied_in_a_state(results: dict[str, Any]) -> None:
    model = results["fsdp adamw 1"]["model"]
    assert model["wte.weight"].data_ptr() == model["head.weight"].data_ptr()
    assert set(model) == set(TinyGPT().state_dict())
    assert Objective(TinyGPT().double()).model.load_state_dict(model).missing_keys == []


@pytest.mark.parametrize("name", ["half", "offload"])
def test_fsdp_computes_in_bf16_and_keeps_fp32(of_two: dict[str, Any], name: str) -> None:
    found = of_two[name]
    assert found["logits"] == "torch.float32"
    assert found["inside"] == "torch.bfloat16"
    assert "3 blocks (Block) and the rest, computing in bf16" in found["line"]
    assert "CPU memory" not in found["line"]  # there is no other
    for key, value in found["model"].items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(
            value, alone("sgd", steps=3)["model"][key].float(), atol=0.02, rtol=0
        )
