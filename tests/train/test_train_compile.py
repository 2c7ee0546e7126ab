"""torch.compile: what is decided and when, and that a training is right with it, without and despite it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from allranks import TrainConfig, Trainer  # noqa: E402
from allranks.train.loop import training_loop  # noqa: E402
from allranks.train.step import compilation  # noqa: E402
from allranks.train.step.compilation import SAMPLE, SETTLE, Compiler, estimated_cost  # noqa: E402

pytestmark = pytest.mark.torch
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Rig:
    """A Compiler with a clock that stands still, and an objective that only notes its mode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: float | None, **options: Any) -> None:
        self.now, self.said, self.left = 100.0, [], left
        monkeypatch.setattr(compilation.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(torch._dynamo, "reset", lambda: None)
        self.modes: list[str | None] = []
        self.objective = nn.Linear(1, 1)
        monkeypatch.setattr(
            nn.Module, "compile", lambda _, mode=None, **__: self.modes.append(mode or "default")
        )
        values: dict[str, Any] = {
            "choice": "auto", "device": GPU, "mean_over_ranks": lambda seconds: seconds, **options,
        }  # fmt: skip
        self.compiler = Compiler(
            self.objective,
            values.pop("choice"),
            values.pop("device"),
            say=self.said.append,
            **values,
        )
        self.step = 0
        self.compiler.start(0, lambda step: None if self.left is None else self.left - step)

    def steps(self, many: int, seconds: float) -> None:
        """So many steps that take so long each."""
        for _ in range(many):
            self.step += 1
            self.now += seconds
            self.compiler.trial = False
            if self.compiler.next_check is not None and self.step >= self.compiler.next_check:
                self.compiler.check(self.step)

    def until_decided(self, seconds: Callable[[str | None], float]) -> None:
        """Steps, with a time for each mode, for as long as the compiler wants to look."""
        while self.compiler.next_check is not None:
            assert self.step < 10_000
            self.steps(1, seconds(self.compiler.mode))


def test_auto_never_compiles_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=1e9, device=CPU)
    rig.steps(500, 1.0)
    assert rig.modes == rig.said == []
    assert rig.compiler.next_check is None


@pytest.mark.parametrize("choice", [True, "default", "max-autotune"])
def test_a_choice_is_followed_at_once_and_never_measured(
    monkeypatch: pytest.MonkeyPatch, choice: bool | str
) -> None:
    rig = Rig(monkeypatch, left=3, device=CPU, choice=choice)
    assert rig.compiler.trial
    assert rig.modes == ["default" if choice is True else choice]
    assert rig.compiler.next_check is None
    assert rig.compiler.uses_graphs is (choice == "max-autotune")


def test_no_is_no(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=1e9, choice=False)
    assert rig.compiler.next_check is None
    assert not rig.modes


def test_few_steps_left_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=300)  # 300 steps of 0.1 s: a quarter is 7.5 s, compiling takes 8
    rig.until_decided(lambda _: 0.1)
    assert rig.modes == []
    assert rig.step == SETTLE + SAMPLE


def test_many_steps_left_are_and_a_faster_step_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=100_000)
    rig.until_decided(lambda mode: 0.02 if mode is None else 0.01)
    assert rig.modes == ["default"]
    assert rig.compiler.mode == "default"
    assert "compiling: a step takes 20.0 ms" in rig.said[0]
    assert "compiled: 10.00 ms a step, 20.00 ms before" in rig.said[1]


def test_a_slower_step_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=100_000)
    rig.objective._compiled_call_impl = lambda *_: None
    rig.until_decided(lambda mode: 0.02 if mode is None else 0.021)
    assert rig.compiler.mode is None
    assert rig.objective._compiled_call_impl is None
    assert rig.said[-1].startswith("not compiled: compiled steps are no faster")
    assert not rig.compiler.trial


@pytest.mark.parametrize(("graphs", "kept"), [(0.0005, "reduce-overhead"), (0.0012, "default")])
def test_short_steps_try_graphs_and_keep_what_is_faster(
    monkeypatch: pytest.MonkeyPatch, graphs: float, kept: str
) -> None:
    times = {None: 0.002, "default": 0.001, "reduce-overhead": graphs}
    rig = Rig(monkeypatch, left=1e6, may_graph=True)
    rig.until_decided(lambda mode: times[mode])
    assert rig.modes[:2] == ["default", "reduce-overhead"]
    assert rig.compiler.mode == kept == rig.modes[-1]


def test_graphs_are_left_alone_with_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=1e6, may_graph=False)
    rig.until_decided(lambda mode: 0.002 if mode is None else 0.001)
    assert rig.modes == ["default"]


def test_without_a_known_end_it_waits_until_time_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, left=None)
    rig.until_decided(lambda mode: 0.1 if mode is None else 0.05)
    assert rig.modes == ["default"]
    # Half of the time spent is a quarter of twice as much: 8.15 s of it at the earliest.
    compiled_at = rig.step - SETTLE - SAMPLE
    assert compiled_at * 0.1 * 0.5 >= estimated_cost(rig.objective)
    assert compiled_at < 1000
    assert "compiled: 50.00 ms a step, 100.00 ms before" in rig.said[-1]


def test_ranks_decide_by_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank is so slow that compiling pays for both."""
    rig = Rig(monkeypatch, left=300, mean_over_ranks=lambda seconds: (seconds + 1.0) / 2)
    rig.steps(SETTLE + SAMPLE, 0.1)
    assert rig.modes == ["default"]


def test_a_rank_that_fails_to_compile_still_meets_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others will come to their next look, and wait there for this one."""
    asked: list[float] = []

    def mean_over_ranks(seconds: float) -> float:
        asked.append(seconds)
        return seconds

    rig = Rig(monkeypatch, left=100_000, mean_over_ranks=mean_over_ranks)
    rig.steps(SETTLE + SAMPLE, 0.02)
    assert rig.compiler.mode == "default"
    rig.compiler.give_up(RuntimeError("no compiler"))
    rig.steps(SETTLE + SAMPLE, 0.02)
    assert len(asked) == 2  # as often as on the ranks that compiled
    assert rig.compiler.mode is None


# -- real trainings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("ALLRANKS_RUN_DIR", raising=False)
    torch._dynamo.reset()


def trained(choice: str | bool, loss_fn: Any = "mse", **fields: Any) -> Any:
    """19 samples in batches of 4: the fifth of each epoch has 3."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(19, 2, generator=torch.Generator().manual_seed(1))
    values: dict[str, Any] = {
        "epochs": 3, "seed": 1, "verbose": False, "summary": False, "progress": False,
        "print_every": 0, "checkpoint": False, "log_every": 1, "compile": choice, **fields,
    }  # fmt: skip
    losses: list[float] = []

    class Curve(Trainer):
        def on_log(self, trainer: Any, values: Any) -> None:
            if "lr" in values:
                losses.append(values["train_loss"])

    trainer = Curve(model, optimizer, TrainConfig(**values), loss_fn)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    trainer.fit(DataLoader(data, 4, shuffle=True), DataLoader(data, 5))
    return SimpleNamespace(losses=losses, trainer=trainer, val=trainer.metrics["val_loss"])


@pytest.mark.usefixtures("here")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++ on the CPU")
@pytest.mark.slow
def test_a_compiled_training_equals_the_eager_one() -> None:
    config = pytest.importorskip("torch._inductor.config")
    eager = trained(False)
    with config.patch({"cpp_cache_precompile_headers": False, "compile_threads": 1}):
        compiled = trained(True)
    assert compiled.trainer.context.compiler.mode == "default"
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)
    assert compiled.val == pytest.approx(eager.val, rel=1e-4)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the compiler by one that counts graphs and runs them as they are."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([tuple(each.shape) for each in inputs if hasattr(each, "shape")])
        return graph.forward

    real = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode=None: real(self, backend=backend))
    return graphs


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("fields", [{}, {"accumulate": 2, "clip_norm": 1.0}, {"ema": 0.9}])
def test_odd_batches_and_validation_compile_nothing_new(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    eager = trained(False, **fields)
    graphs = counting(monkeypatch)
    compiled = trained(True, **fields)
    assert len(graphs) == 1, graphs
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-5)


@pytest.mark.usefixtures("here")
def test_the_step_made_for_graphs_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies losses that the next replay overwrites; the one before it does not."""
    monkeypatch.setenv("ALLRANKS_TIMING", "off")  # a marked step is another one
    counting(monkeypatch)
    remade: list[int] = []
    real = training_loop.make_step

    def spied(context: Any) -> Any:
        inner = real(context)
        return lambda data, share: remade.append(1) or inner(data, share)

    monkeypatch.setattr(training_loop, "make_step", spied)
    trained("reduce-overhead", epochs=1)
    assert len(remade) == 5


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("fields", [{}, {"accumulate": 2}])
def test_a_model_that_does_not_compile_trains_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no such instruction")

    eager = trained(False, **fields)
    real = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode=None: real(self, backend=backend))
    failed = trained(True, **fields)
    told = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(told) == 1, told
    assert told[0].startswith("not compiled: ")
    assert "no such instruction" in told[0]
    assert failed.losses == eager.losses
    assert failed.val == eager.val


@pytest.mark.usefixtures("here")
def test_a_broken_compiler_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real inductor, with a C++ compiler that fails."""
    config = pytest.importorskip("torch._inductor.config")
    eager = trained(False)
    changes = {"cpp.cxx": ("/bin/false",), "force_disable_caches": True, "compile_threads": 1}
    with config.patch(changes):
        failed = trained(True)
    out = capsys.readouterr().out
    assert out.count("not compiled: ") == 1
    assert len(out.splitlines()) == 1, out
    assert failed.losses == eager.losses


@pytest.mark.usefixtures("here")
def test_an_error_of_the_users_own_is_not_taken_for_the_compilers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting(monkeypatch)

    def broken(model: Any, batch: Any) -> Any:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        trained(True, broken)
