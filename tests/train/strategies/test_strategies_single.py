"""In one process: what is done to modules, options, errors, and DDP and FSDP with a group of one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from strategies_rig import CPU, KINDS, Block, TinyGPT, Training, a_world, same  # noqa: E402
from torch import nn  # noqa: E402

from allranks.errors import UsageError, WorldError  # noqa: E402
from allranks.train.checkpoint.async_writer import CheckpointSaver  # noqa: E402
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore  # noqa: E402
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader, pack_blob, unpack_blob  # noqa: E402
from allranks.train.checkpoint.write_plan import CheckpointState  # noqa: E402
from allranks.train.strategies import DDP, Single, Strategy, StrategyOptions  # noqa: E402
from allranks.train.strategies.deepspeed import DeepSpeed  # noqa: E402
from allranks.train.strategies.module_wrapping import blocks, outer_blocks  # noqa: E402
from allranks.train.strategies.named_state_dicts import TensorsInMemory, split_tensors  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def put(strategy: Strategy, model: nn.Module, size: int = 1, **options: Any) -> nn.Module:
    return strategy.setup(
        model, [], world=a_world(0, size), device=CPU, options=StrategyOptions(**options)
    )


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_group_of_one_trains_as_one_process(group_of_one: None, kind: str) -> None:
    alone, grouped = Training("single", a_world()), Training(kind, a_world())
    same(alone.run(range(3)), grouped.run(range(3)))
    same(alone.states(), grouped.states())
    assert grouped.strategy.describe().startswith(f"{kind} over 1 rank, ")
    grouped.strategy.close()
    assert grouped.strategy.model is None


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_without_a_group_the_error_says_what_to_call(kind: str) -> None:
    with pytest.raises(WorldError, match=r"allranks\.init\(\)"):
        put(KINDS[kind](), TinyGPT())


def test_a_state_does_not_change_with_the_training() -> None:
    training = Training("single", a_world())
    training.run(range(2))
    saved = training.saved()
    kept = copy.deepcopy(training.states())
    training.load(saved)
    training.run(range(2, 4))
    other = Training("single", a_world())
    other.load(saved)
    same(kept, other.states())


def test_how_a_step_is_computed_is_not_loaded() -> None:
    one, other = Training("single", a_world()), Training("single", a_world())
    one.optimizer.param_groups[0].update(foreach=True, lr=0.5)
    one.run(range(1))
    other.load(one.saved())
    assert other.optimizer.param_groups[0]["foreach"] is None
    assert other.optimizer.param_groups[0]["lr"] == 0.5


def test_what_modules_save_beside_tensors_comes_back() -> None:
    class Counts(nn.Linear):
        seen = 0

        def get_extra_state(self) -> int:
            return self.seen

        def set_extra_state(self, state: int) -> None:
            self.seen = state

    one, other = Counts(2, 2), Counts(2, 2)
    one.seen = 5
    saver, loader = Single(), Single()
    put(saver, nn.Sequential(one))
    put(loader, nn.Sequential(other))
    kept: dict[str, torch.Tensor] = {}
    tree = split_tensors(saver.model_tensors(), "model", kept)
    loader.load_model(tree, TensorsInMemory(kept))
    assert other.seen == 5
    assert torch.equal(one.weight, other.weight)


class Remembers(nn.Linear):
    """Keeps tensors beside its parameters."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.kept: Any = {"scale": torch.ones(3), "past": [torch.zeros(2), 0]}

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


class Copies(nn.Linear):
    """Its state_dict() gives copies."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("seen", torch.zeros(1))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        for name in found:
            found[name] = found[name].detach().clone()
        return found


def moved_over(kind: str, one: nn.Module, other: nn.Module, folder: Path) -> None:
    """Save the one by its strategy, load it into the other."""
    saver, loader = KINDS[kind](), KINDS[kind]()
    put(saver, one)
    put(loader, other)
    tensors: dict[str, Any] = {}
    tree = split_tensors(saver.model_tensors(), "model", tensors)
    store = CheckpointStore(folder)
    token = store.take_over({})
    writer = CheckpointSaver(store, 0, 1, token, asynchronous=False)
    writer.start(CheckpointState(tensors, state=tree), store.stage(1, token), {"step": 1})
    assert writer.problem == ""
    reader = CheckpointReader(folder / "latest")
    assert loader.model_mismatch(reader.blob("state"), reader) == ""
    loader.load_model(reader.blob("state"), reader)
    same(saver.model_state(), loader.model_state())


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("state", ["tree", "tensor"])
def test_tensors_in_what_modules_make_come_back(
    group_of_one: None, kind: str, state: str, tmp_path: Path
) -> None:
    one, other = Remembers(), Remembers()
    one.kept = {"scale": torch.full((3,), 4.0), "past": [torch.ones(2), 7]}
    if state == "tensor":
        one.kept = torch.arange(5)
        other.kept = None  # nothing yet
    moved_over(kind, nn.Sequential(one), nn.Sequential(other), tmp_path)
    same(one.kept, other.kept)


@pytest.mark.parametrize("kind", [*KINDS])
def test_entries_that_are_copies_are_loaded_by_the_model(
    group_of_one: None, kind: str, tmp_path: Path
) -> None:
    one, other = Copies(), Copies()
    one.seen += 5
    moved_over(kind, one, other, tmp_path)
    assert float(other.seen) == 5


def test_a_layer_that_is_gone_does_not_fit() -> None:
    saver, loader = Single(), Single()
    put(saver, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)))
    put(loader, nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    kept: dict[str, torch.Tensor] = {}
    tree = split_tensors(saver.model_tensors(), "model", kept)
    assert "'1.weight' is not in this model" in loader.model_mismatch(tree, TensorsInMemory(kept))


def test_numbers_of_numpy_are_saved_as_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    tree = {"lr": numpy.float64(1e-3), "betas": (numpy.float32(0.5), 0.9), "on": numpy.bool_(True)}
    found = split_tensors(tree, "optimizer", {})
    assert found == {"lr": 1e-3, "betas": (0.5, 0.9), "on": True}
    assert {type(found["lr"]), type(found["betas"][0]), type(found["on"])} == {float, bool}
    assert unpack_blob(pack_blob(found)) == found


def test_all_of_deepspeed_s_loss_scaling_goes_on() -> None:
    scaling = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")

    def a_strategy() -> Any:
        strategy = DeepSpeed()
        scaler = scaling.DynamicLossScaler(2.0**16, 4, 1.0, 2, False)
        outer = SimpleNamespace(loss_scaler=scaler)
        strategy._engine = SimpleNamespace(lr_scheduler=None, optimizer=outer)
        strategy.options = StrategyOptions(precision="fp16")
        return strategy

    one, other = a_strategy(), a_strategy()
    one._scaler.cur_scale, one._scaler.cur_hysteresis = 2.0**12, 1
    one._scaler.cur_iter, one._scaler.last_overflow_iter = 41, 39
    other.load_extra_state(unpack_blob(pack_blob(one.extra_state())))
    assert vars(other._scaler) == vars(one._scaler)
    for _ in range(4):
        other._scaler.update_scale(False)
    assert other._scaler.cur_scale == 2.0**13  # four iterations after the overflow


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(self.layer() for _ in range(2)))

    @staticmethod
    def layer() -> nn.Module:
        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(self.linear(x))

        return Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_checkpointed_batch_norm_counts_a_batch_once() -> None:
    plain = Normed()
    checkpointed = copy.deepcopy(plain)
    strategies = Single(), Single(activation_checkpointing=["Layer"])
    x = torch.randn(8, 4)
    for strategy, model in zip(strategies, (plain, checkpointed), strict=True):
        put(strategy, model)(x).square().sum().backward()
    assert "Checkpoint" in type(checkpointed.layers[0]).__name__
    same(strategies[0].model_state(), strategies[1].model_state())
    grads = [[value.grad for value in model.parameters()] for model in (plain, checkpointed)]
    same(*grads)


def test_the_repeated_blocks_are_found() -> None:
    model = TinyGPT()
    assert blocks(model) == [*model.blocks]
    assert blocks(model, ["Linear"]) == [
        *(part for block in model.blocks for part in (block.up, block.down)), model.head
    ]  # fmt: skip
    assert blocks(model, [Block]) == [*model.blocks]
    stages = nn.ModuleDict({"a": nn.Sequential(Block(), Block()), "b": nn.Sequential(Block())})
    assert blocks(stages) == [*stages["a"]]

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.act = nn.Linear(2, 2), nn.Linear(2, 2), nn.Tanh()

    pair = Pair()
    assert blocks(pair) == [pair.one, pair.two]


def test_a_block_that_shares_a_parameter_is_not_sharded_alone() -> None:
    model = TinyGPT()
    assert outer_blocks(model, blocks(model, ["Embedding", "Block"])) == [*model.blocks]


def test_unknown_classes_are_told_with_those_there() -> None:
    with pytest.raises(UsageError, match=r"has no Blok\. Its classes are Block, Embedding"):
        put(Single(activation_checkpointing=["Blok"]), TinyGPT())


def test_own_options_win() -> None:
    strategy = Single(activation_checkpointing=["Block"])
    put(strategy, TinyGPT(), precision="bf16", activation_checkpointing=False)
    assert strategy.options.activation_checkpointing == ["Block"]
    assert strategy.options.precision == "bf16"
    with pytest.raises(
        UsageError, match=r"DDP has no option 'find_unused'\. Did you mean 'find_unused_"
    ):
        DDP(find_unused=True)


def test_ddp_refuses_a_frozen_model(group_of_one: None) -> None:
    with pytest.raises(UsageError, match="no trainable parameter"):
        put(DDP(), TinyGPT().requires_grad_(False))


def test_models_without_values_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'wte\.weight' is on the meta device"):
        put(Single(), TinyGPT().to("meta"))
    with pytest.raises(UsageError, match=r"'0\.weight' is lazy"):
        put(Single(), nn.Sequential(nn.LazyLinear(3)))


def test_batch_norms_are_synced_on_gpus_only() -> None:
    with pytest.raises(UsageError, match="on GPUs only"):
        put(DDP(), Normed(), size=2, sync_batchnorm=True)
    put(Single(), Normed(), sync_batchnorm=True)  # one process has nothing to sync


def test_buffers_that_move_are_sent_before_a_forward_pass(group_of_one: None) -> None:
    table = nn.Linear(2, 2)
    table.register_buffer("table", torch.zeros(3), persistent=False)
    assert not put(DDP(), nn.Sequential(table, nn.BatchNorm1d(2))).broadcast_buffers
    table.register_buffer("average", torch.zeros(3))
    assert put(DDP(), nn.Sequential(table, nn.BatchNorm1d(2))).broadcast_buffers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_clipping_is_torch_s_own(dtype: torch.dtype) -> None:
    ours = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (5,), ())]
    for value in ours:
        value.grad = torch.randn_like(value) * 3
    ours.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    theirs = copy.deepcopy(ours)
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = None if mine.grad is None else mine.grad.clone()
    strategy = Single()
    put(strategy, TinyGPT())
    norm = strategy.clip_norm(ours, 0.7)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.7)
    torch.testing.assert_close(norm, expected, check_dtype=False, rtol=1e-2, atol=0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    assert float(strategy.clip_norm([], 1.0)) == 0


def test_accumulation_is_not_a_strategys_own_affair() -> None:
    with pytest.raises(UsageError, match=r"TrainConfig\(accumulate"):
        Single(accumulate=4)
