"""Callbacks that touch optimizers, gradients, models and data."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_train_callbacks import StandIn, validate

from allranks.errors import UsageError
from allranks.train.callbacks import (
    Callbacks,
    Cosine,
    Cyclic,
    GradientMonitor,
    LogModel,
    LRSchedule,
    R3Dataset,
    ReduceOnPlateau,
    Resample,
    StepDecay,
    WritePlots,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def trainer_with(*rates: float, **options: Any) -> StandIn:
    """A linear model; one parameter group per learning rate."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in rates))
    groups = [{"params": list(m.parameters()), "lr": r} for m, r in zip(model, rates, strict=True)]
    return StandIn(model, [torch.optim.SGD(groups)], **options)


def rates_over(schedule: LRSchedule, trainer: StandIn, times: int) -> list[float]:
    """The first group's rate at the start and after each epoch or step."""
    callbacks = Callbacks([schedule])
    callbacks.fire("fit_start", trainer)
    group = trainer.optimizers[0].param_groups[0]
    rates = [float(group["lr"])]
    for _ in range(times):
        trainer.epoch += 1
        trainer.step += 1
        callbacks.fire("step_end", trainer)
        callbacks.fire("epoch_end", trainer)
        rates.append(float(group["lr"]))
    return rates


def test_step_decay_follows_the_initial_rate_of_each_group() -> None:
    trainer = trainer_with(1.0, 0.1)
    assert rates_over(StepDecay(2, 0.5), trainer, 5) == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert trainer.optimizers[0].param_groups[1]["lr"] == pytest.approx(0.025)


def test_cosine_is_the_closed_form_and_ends_at_its_minimum() -> None:
    rates = rates_over(Cosine(t_max=4, min_lr=0.2), trainer_with(1.0), 6)
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * min(t, 4) / 4)) / 2 for t in range(7)]
    assert rates == pytest.approx(expected)
    assert rates[4:] == pytest.approx([0.2, 0.2, 0.2])


def test_cosine_agrees_with_torch_up_to_its_end() -> None:
    ours = rates_over(Cosine(t_max=7, min_lr=0.01), trainer_with(0.3), 7)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7, 0.01)
    theirs = [0.3]
    for _ in range(7):
        optimizer.step()
        scheduler.step()
        theirs.append(optimizer.param_groups[0]["lr"])
    assert ours == pytest.approx(theirs)


def test_cyclic_rises_and_falls() -> None:
    assert rates_over(Cyclic(0.1, 0.5, period=4), trainer_with(9.0), 5) == pytest.approx(
        [0.1, 0.3, 0.5, 0.3, 0.1, 0.3]
    )


def test_a_schedule_per_epoch_costs_nothing_per_step() -> None:
    assert not Callbacks([Cosine(t_max=4)]).has("step_end")
    per_step = Callbacks([Cosine(t_max=4, per="step")])
    assert per_step.has("step_end")
    assert not per_step.has("epoch_end")


@pytest.mark.parametrize("load_first", [True, False])
def test_a_resumed_schedule_goes_on_where_it_was(load_first: bool) -> None:
    straight = rates_over(StepDecay(1, 0.5), trainer_with(1.0), 4)
    first, trainer = StepDecay(1, 0.5), trainer_with(1.0)
    rates_over(first, trainer, 2)
    second = StepDecay(1, 0.5)
    resumed = trainer_with(0.25)  # the optimizer's state brings the rate of the time
    resumed.step, resumed.epoch = 2, 2
    if load_first:
        second.load_state_dict(first.state_dict())
    second.on_fit_start(resumed)
    second.load_state_dict(first.state_dict())
    assert rates_over(second, resumed, 2) == straight[2:]


def test_a_second_fit_with_a_new_optimizer_starts_from_its_rate() -> None:
    schedule = StepDecay(1, 0.5)
    rates_over(schedule, trainer_with(1.0), 2)
    assert rates_over(schedule, trainer_with(8.0), 1) == [8.0, 4.0]


def test_a_rate_changed_by_others_does_not_bend_the_curve() -> None:
    trainer, schedule = trainer_with(1.0), Cosine(t_max=2, min_lr=0.2)
    schedule.on_fit_start(trainer)
    trainer.optimizers[0].param_groups[0]["lr"] = 77.0
    trainer.epoch = 1
    schedule.on_epoch_end(trainer)
    schedule.on_epoch_end(trainer)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.6)


def test_a_rate_held_in_a_tensor_is_changed_in_place() -> None:
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=rate, capturable=False)
    assert rates_over(StepDecay(1, 0.5), StandIn(None, [optimizer]), 1) == [1.0, 0.5]
    assert optimizer.param_groups[0]["lr"] is rate


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_plateau_lowers_the_rate_only_without_progress(mode: str, sign: int) -> None:
    trainer = trainer_with(1.0)
    plateau = ReduceOnPlateau("val_loss", mode, factor=0.1, patience=2, min_lr=0.05)
    plateau.on_fit_start(trainer)
    group = trainer.optimizers[0].param_groups[0]
    validate(plateau, trainer, *(sign * value for value in (4, 3, 2, 1)))
    assert group["lr"] == 1.0
    validate(plateau, trainer, sign * 1, math.nan)
    assert group["lr"] == pytest.approx(0.1)
    validate(plateau, trainer, sign * 2, sign * 2)
    assert group["lr"] == pytest.approx(0.05)


def test_plateau_state_is_kept_over_a_resume() -> None:
    first, trainer = ReduceOnPlateau(patience=1, factor=0.5), trainer_with(1.0)
    first.on_fit_start(trainer)
    validate(first, trainer, 1.0, 1.0)
    second, resumed = ReduceOnPlateau(patience=1, factor=0.5), trainer_with(0.5)
    resumed.step = 20
    second.load_state_dict(first.state_dict())
    second.on_fit_start(resumed)
    validate(second, resumed, 1.0)
    assert resumed.optimizers[0].param_groups[0]["lr"] == 0.25


def test_gradients_are_described_over_all_elements() -> None:
    trainer = trainer_with(1.0)
    weight, bias = trainer.model[0].weight, trainer.model[0].bias
    weight.grad, bias.grad = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([0.0, -6.0])
    GradientMonitor(every=1).on_before_step(trainer)
    flat = torch.tensor([1.0, -2.0, 3.0, 4.0, 0.0, -6.0])
    assert trainer.logged["grad/norm"] == pytest.approx(float(flat.norm()))
    assert trainer.logged["grad/mean"] == pytest.approx(0.0)
    assert trainer.logged["grad/std"] == pytest.approx(float(flat.std(correction=0)))
    assert trainer.logged["grad/max"] == 6.0


def test_gradients_by_group_with_odd_kinds() -> None:
    trainer = trainer_with(1.0, 1.0)
    groups = trainer.optimizers[0].param_groups
    groups[1]["name"] = "head"
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    wave = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    wave.grad = torch.tensor([3 + 4j, 0j])
    groups[0]["params"] = [table.weight, wave]
    half = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    half.grad = torch.tensor([math.nan, 1.0, 2.0], dtype=torch.bfloat16)
    groups[1]["params"] = [half]
    GradientMonitor(every=1).on_before_step(trainer)
    assert trainer.logged["grad/0/norm"] == pytest.approx(math.sqrt(2**2 + 2**2 + 25))
    assert math.isnan(trainer.logged["grad/head/norm"])


def test_gradients_are_looked_at_every_so_many_steps() -> None:
    trainer = trainer_with(1.0)
    trainer.model(torch.ones(1, 2)).sum().backward()
    monitor, at = GradientMonitor(every=3), []
    for trainer.step in range(7):
        trainer.logged.clear()
        monitor.on_before_step(trainer)
        at += [trainer.step + 1] if trainer.logged else []
    assert at == [3, 6]


class Figure:
    def savefig(self, path: Path) -> None:
        Path(path).write_text("drawn")


class Keeper:
    def __init__(self) -> None:
        self.figures: list[tuple[str, int]] = []
        self.models: list[Any] = []

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        self.figures.append((name, step))

    def model(self, model: Any) -> None:
        self.models.append(model)


def test_plots_are_kept_and_the_models_modes_are_put_back(tmp_path: Path) -> None:
    trainer = trainer_with(1.0, 1.0, folder=tmp_path)
    trainer.model.train()
    trainer.model[1].eval()
    trainer.loggers, modes = [Keeper()], []

    def draw(model: Any, epoch: int) -> tuple[str, Figure]:
        modes.append(model.training)
        return "loss/x y", Figure()

    callbacks = Callbacks([WritePlots(draw, every=2)])
    for trainer.epoch in (1, 2, 3):
        callbacks.fire("epoch_end", trainer)
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["loss_x_y-2.png"]
    assert trainer.loggers[0].figures == [("loss/x y", 0)]
    assert modes == [False]
    assert [trainer.model.training, trainer.model[1].training] == [True, False]


def test_a_failing_plot_is_told_and_the_others_are_drawn(tmp_path: Path) -> None:
    trainer = trainer_with(1.0, folder=tmp_path)

    def broken(model: Any, epoch: int) -> None:
        raise ValueError("no data")

    WritePlots([broken, lambda model, epoch: ("good", Figure())]).on_epoch_end(trainer)
    assert trainer.said == ["Plot broken failed: ValueError: no data"]
    assert (tmp_path / "plots" / "good-0.png").exists()


def test_pyplot_keeps_no_figure_that_was_drawn(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    trainer = trainer_with(1.0, folder=tmp_path)
    WritePlots(lambda model, epoch: ("loss", pyplot.figure())).on_epoch_end(trainer)
    WritePlots(lambda model, epoch: ("other", Figure())).on_epoch_end(trainer)
    assert trainer.said == []
    assert pyplot.get_fignums() == []
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"loss-0.png", "other-0.png"}


def test_other_ranks_do_not_plot(tmp_path: Path) -> None:
    trainer = trainer_with(1.0, folder=tmp_path)
    trainer.world.is_main = False
    WritePlots(lambda model, epoch: 1 / 0).on_epoch_end(trainer)
    assert trainer.said == []


def test_the_model_goes_to_the_loggers_at_the_end() -> None:
    trainer = trainer_with(1.0)
    trainer.loggers = [Keeper()]
    LogModel().on_fit_end(trainer)
    assert trainer.loggers[0].models == [trainer.model]


def test_r3_keeps_the_fit_and_draws_the_others_the_same_way_everywhere() -> None:
    first, second = (R3Dataset(lambda n: torch.rand(n, 1), 6, seed=3) for _ in range(2))
    torch.manual_seed(7)
    before, points = torch.get_rng_state(), first.points.clone()
    fitness = torch.tensor([9.0, 0.0, 9.0, 0.0, 0.0, 0.0])
    first.update(fitness)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    second.update(fitness)
    assert torch.equal(first.points, second.points)
    assert torch.equal(first.points[[0, 2]], points[[0, 2]])
    assert not torch.isin(first.points[[1, 3, 4, 5]], points).any()
    with pytest.raises(UsageError, match="6 points"):
        first.update(torch.ones(5))


def test_resample_updates_every_so_often_and_resumes() -> None:
    trainer = trainer_with(1.0)
    dataset = R3Dataset(lambda n: torch.rand(n, 2), 8)
    resample = Resample(dataset, lambda model, data: model(data.points).norm(dim=1), every=2)
    for trainer.epoch in (1, 2, 3, 4):
        resample.on_epoch_end(trainer)
    assert dataset.updates == 2
    other = Resample(R3Dataset(lambda n: torch.rand(n, 2), 8, seed=5), resample.fitness_function)
    other.load_state_dict(resample.state_dict())
    assert torch.equal(other.dataset.points, dataset.points)
    with pytest.raises(UsageError, match="update"):
        Resample([1, 2], print)


SHARDED = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch < 2.6
        from torch.distributed._composable.fsdp import fully_shard
    sys.path[:0] = [sys.argv[3]]
    from types import SimpleNamespace
    from test_train_callbacks import StandIn
    from allranks.train.callbacks import GradientMonitor, LogModel, R3Dataset, Resample
    from allranks.train.monitoring.model_summary import summarize

    torch.set_num_threads(1)
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    model(torch.ones(2, 3)).sum().backward()
    whole = StandIn(model, [torch.optim.SGD(model.parameters(), lr=1.0)])
    GradientMonitor(every=1).on_before_step(whole)
    table = summarize(model)
    model.zero_grad()

    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 3)).sum().backward()
    parts = StandIn(model, [torch.optim.SGD(model.parameters(), lr=1.0)])
    GradientMonitor(every=1).on_before_step(parts)
    for name, value in whole.logged.items():
        assert abs(parts.logged[name] - value) < 1e-4, (name, parts.logged[name], value)
    assert len(parts.logged) == 4
    assert summarize(model) == table, summarize(model)

    kept = []
    parts.loggers = [SimpleNamespace(model=kept.append)] if rank == 0 else []
    LogModel().on_fit_end(parts)
    if rank == 0:
        assert kept[0]["0.weight"].shape == (5, 3) and not hasattr(kept[0]["0.weight"], "placements")

    parts.world = SimpleNamespace(rank=rank, size=2, is_main=rank == 0)
    data = R3Dataset(lambda n: torch.rand(n, 3), 8)
    Resample(data, lambda m, d: torch.rand(8) + rank).on_epoch_end(parts)
    mine = data.points.clone()
    dist.broadcast(mine, 0)
    assert torch.equal(mine, data.points)
    dist.destroy_process_group()
    print("done", rank)
"""


def test_sharded_models_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(textwrap.dedent(SHARDED))
    here = str(Path(__file__).parent)
    command = [sys.executable, "-W", "ignore", str(script)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), here],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        texts = [process.communicate(timeout=100)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(texts)
