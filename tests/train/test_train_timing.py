"""What a step's time goes to: the keys of the train lines, and that measuring changes no number."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402
from trainer_rig import line, points, quiet, train_lines  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402
from allranks.train.loop.checkpoint_policy import CheckpointManager  # noqa: E402
from allranks.train.monitoring.profiled_steps import SECONDS, StepSampler  # noqa: E402
from allranks.train.monitoring.recorder import StepTimesFile  # noqa: E402
from allranks.train.step.phase_timer import PHASES, PhaseTimer  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


@pytest.fixture(autouse=True)
def as_at_first() -> Any:
    """Nothing was compiled; one thread, since those of tiny models would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if "torch._dynamo.utils" in sys.modules:  # another test has compiled something
        sys.modules["torch._dynamo.utils"].counters.clear()
    yield
    torch.set_num_threads(threads)


PARTS = [f"{name}_seconds" for name in ("data", *PHASES, "checkpoint", "other")]


def trained(loader: Any = None, val: Any = None, callbacks: Any = (), **fields: Any) -> Any:
    model, optimizer = line()
    config = quiet(**{"log_every": 2, "epochs": 2, **fields})
    trainer = Trainer(model, optimizer, config, callbacks=callbacks)
    trainer.fit(loader or DataLoader(points(), 8), val)
    return trainer


class Slow(Dataset[Any]):
    """Every sample takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.ones(1), torch.ones(1)


# -- where the time goes


@pytest.mark.parametrize("fields", [{}, {"accumulate": 2}, {"clip_norm": 1.0, "ema": 0.9}])
def test_the_parts_of_a_step_add_up_to_it(fields: dict[str, Any]) -> None:
    rows = [row for row in train_lines(trained(**fields)) if "forward_seconds" in row]
    assert rows
    for row in rows:
        parts = [row[name] for name in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["step_seconds"], rel=1e-3)
        assert row["forward_seconds"] > 0
        assert row["optimizer_seconds"] > 0
        assert row["communication_seconds"] == 0  # there is nobody else


def test_waiting_for_data_is_seen() -> None:
    rows = train_lines(trained(DataLoader(Slow(0.002), 4), epochs=1))
    for row in rows:
        assert row["data_seconds"] >= 4 * 0.002
        assert row["data_seconds"] <= row["step_seconds"]


def test_a_validation_is_no_step_s_time() -> None:
    began = time.perf_counter()
    config = {"val_every_steps": 3, "log_every": 4, "epochs": 2}
    rows = train_lines(trained(val=DataLoader(Slow(0.002), 8), **config))
    wall = time.perf_counter() - began
    steps = [b["step"] - a["step"] for a, b in zip([{"step": 0}, *rows], rows, strict=False)]
    spent = sum(n * row["step_seconds"] for n, row in zip(steps, rows, strict=True))
    assert spent < wall - 3 * 24 * 0.002
    for row in rows:
        assert row["samples_per_second"] * row["step_seconds"] == pytest.approx(8, rel=1e-3)


def test_a_checkpoint_that_holds_up_the_steps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    save = CheckpointManager.save

    def slow(self: Any, *args: Any, **values: Any) -> Any:
        time.sleep(0.02)
        return save(self, *args, **values)

    monkeypatch.setattr(CheckpointManager, "save", slow)
    rows = train_lines(trained(checkpoint_every_steps=3, log_every=1))
    held = {row["step"]: row["checkpoint_seconds"] for row in rows}
    assert {step for step, seconds in held.items() if seconds >= 0.02} == {4, 7, 10}
    assert held[2] == held[5] == 0


class Own(Callback):
    """Looks at nothing, so that the loop takes its other way."""

    def on_batch_end(self, trainer: Any) -> None:
        return


class Manual(Trainer):
    def training_step(self, model: Any, batch: Any, step: Any) -> Any:
        loss = functional.mse_loss(model(batch[0]), batch[1])
        step.backward(loss)
        step.update("0")
        return loss


def own_optimize_step(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
    loss = functional.mse_loss(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, {}


@pytest.mark.parametrize("way", ["lbfgs", "manual", "custom"])
def test_steps_that_somebody_else_drives_have_no_phases(way: str) -> None:
    model, optimizer = line()
    more: dict[str, Any] = {}
    kind: type[Trainer] = Trainer
    if way == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    elif way == "manual":
        kind = Manual
    else:
        more["optimize_step"] = own_optimize_step
    trainer = kind(model, optimizer, quiet(log_every=2), **more)
    trainer.fit(DataLoader(points(), 8))
    for row in train_lines(trainer):
        there = {name for name in PARTS if name in row}
        assert there == {"data_seconds", "checkpoint_seconds", "other_seconds"}
        total = sum(row[name] for name in there)
        assert total == pytest.approx(row["step_seconds"], rel=1e-3)


def test_with_a_callback_for_every_batch() -> None:
    rows = train_lines(trained(callbacks=[Own()]))
    assert set(PARTS) <= set(rows[-1])


@pytest.mark.parametrize("word", ["off", "0", "No"])
def test_switched_off_only_the_whole_step_is_known(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLRANKS_TIMING", word)
    trainer = trained(peak_flops=1e12)
    for row in train_lines(trainer):
        assert row["step_seconds"] > 0
        assert row["samples_per_second"] > 0
        assert not {*PARTS, "mfu"} & set(row)
    assert not [*trainer.folder.glob("attempts/*/steps.jsonl")]


# -- the numbers of the training stay as they are


class Mixed(nn.Module):
    """Convolution, batch norm, dropout and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 1)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        seen = self.dropout(self.norm(self.conv(x.unsqueeze(1))).relu()).transpose(1, 2)
        query, key, value = self.into(seen).unsqueeze(1).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        return self.out(seen.squeeze(1)).mean(1)


def mixed_training(**fields: Any) -> Any:
    torch.manual_seed(3)
    model = Mixed()
    x = torch.randn(46, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    config = quiet(epochs=3, log_every=1, checkpoint=False, **fields)
    trainer = Trainer(model, optimizer, config, scheduler=scheduler)
    trainer.fit(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True))
    return trainer


def same_bits(one: Any, other: Any) -> bool:
    losses = [[row["train_loss"] for row in train_lines(each)] for each in (one, other)]
    states = [each.model.state_dict() for each in (one, other)]
    equal = [torch.equal(states[0][name], states[1][name]) for name in states[0]]
    return losses[0] == losses[1] and all(equal)


WAYS: list[dict[str, Any]] = [
    {},
    {"accumulate": 4},
    {"clip_norm": 0.1, "clip_value": 0.05},
    {"warmup_steps": 5, "ema": 0.9},
    {"precision": "bf16"},
]


@pytest.mark.parametrize("fields", WAYS, ids=lambda fields: "+".join(fields) or "plain")
def test_marked_steps_give_the_same_bits(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]
) -> None:
    monkeypatch.setitem(SECONDS, "cpu", 0.0)
    marked: list[str] = []
    end = PhaseTimer.end
    monkeypatch.setattr(
        PhaseTimer, "end", lambda self, phase: (marked.append(phase), end(self, phase))
    )
    timed = mixed_training(**fields)
    assert marked.count("optimizer") >= timed.step - 2  # all but the first two
    new_process()
    monkeypatch.setenv("ALLRANKS_TIMING", "off")
    marked.clear()
    plain = mixed_training(**fields)
    assert not marked
    assert same_bits(timed, plain)


def flops_of(trainer: Any) -> float:
    row = train_lines(trainer)[-1]
    return float(row["flops_per_second"] / row["samples_per_second"])


@pytest.mark.parametrize("fields", [{}, {"precision": "bf16"}, {"accumulate": 4}])
def test_counting_operations_changes_no_bit(
    fields: dict[str, Any], new_process: Callable[[], None]
) -> None:
    counted = mixed_training(peak_flops=1e12, **fields)
    assert flops_of(counted) > 0
    new_process()
    plain = mixed_training(**fields)
    assert "mfu" not in train_lines(plain)[-1]
    assert same_bits(counted, plain)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_what_is_counted_is_the_model_without_what_is_computed_twice() -> None:
    """8·8 multiplications and additions in 4 layers; backward twice that, but for the data's gradient."""
    x = torch.randn(40, 8)
    found = []
    for again in (False, ["Sequential"]):
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = quiet(log_every=2, peak_flops=1e12, activation_checkpointing=again)
        trainer = Trainer(model, optimizer, config)
        trainer.fit(DataLoader(TensorDataset(x, x), 8))
        found.append(flops_of(trainer))
    exact = 2 * 64 * (4 + 4 + 3)
    assert found == pytest.approx([exact, exact], rel=1e-3)


def test_what_was_compiled_is_not_counted() -> None:
    model, _ = line()
    compiled = torch.compile(functional.mse_loss, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = quiet(log_every=2, peak_flops=1e12)
    trainer = Trainer(
        model, optimizer, config, loss_fn=lambda output, target: compiled(output, target)
    )
    trainer.fit(DataLoader(points(), 8))
    assert "mfu" not in train_lines(trainer)[-1]
    assert "forward_seconds" in train_lines(trainer)[-1]
    torch._dynamo.reset()


# -- speeds


def test_given_operations_and_peak_make_the_mfu() -> None:
    rows = train_lines(trained(flops_per_sample=1e6, peak_flops=1e12))
    for row in rows:
        speed = row["samples_per_second"]
        assert row["flops_per_second"] == pytest.approx(1e6 * speed, rel=1e-3)
        assert row["mfu"] == pytest.approx(1e-6 * speed, rel=1e-3)
    rows = train_lines(trained(flops_per_sample=1e6))
    assert "flops_per_second" in rows[-1]
    assert "mfu" not in rows[-1]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return {"loss": self.table(input_ids).square().mean()}


@pytest.mark.parametrize(
    ("fields", "tokens"), [({}, 7), ({"tokens_per_sample": 5}, 5)], ids=["found", "given"]
)
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_tokens_per_second(kind: str, fields: dict[str, Any], tokens: int) -> None:
    ids = torch.arange(32 * 7).reshape(32, 7) % 10
    model = Words()
    data: Any = [{"labels": torch.zeros(4), "input_ids": ids[i : i + 4]} for i in range(0, 32, 4)]
    if kind == "tuple":
        data = DataLoader(TensorDataset(ids), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, quiet(log_every=4, **fields), loss_fn=None)
    trainer.fit(data)
    for row in train_lines(trainer):
        speed = row["samples_per_second"]
        assert speed * row["step_seconds"] == pytest.approx(4, rel=1e-3)
        assert row["tokens_per_second"] == pytest.approx(tokens * speed, rel=1e-3)


def test_columns_of_later_lines_are_added_to_the_csv_file() -> None:
    trainer = trained(loggers=["csv"], log_every=1)
    head, first, *_, last = (trainer.folder / "metrics.csv").read_text().splitlines()
    names = head.split(",")
    assert set(PARTS) <= set(names)
    assert first.split(",")[names.index("forward_seconds")] == ""
    assert len(last.split(",")) == len(names)


# -- steps.jsonl


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "steps.jsonl").read_text().splitlines()]


def test_each_attempt_has_a_file_of_its_ranks_steps(
    run_folder: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, steps in ((1, 4), (2, 10)):
        attempt = run_folder / "attempts" / str(number)
        attempt.mkdir(parents=True)
        monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(attempt))
        trained(epochs=None, max_steps=steps)
        new_process()
    first, second = (steps_of(run_folder / "attempts" / number) for number in ("1", "2"))
    assert first[-1]["step"] == 4
    assert all(row["step"] > 4 for row in second)
    assert second[-1]["step"] == 10
    lists = ("step_seconds", "data_seconds", "compute_seconds", "communication_seconds")
    for row in (*first, *second):
        assert list(row) == ["time", "step", "epoch", "fit", *lists]
        assert [len(row[name]) for name in lists] == [1, 1, 1, 1]


def test_a_disk_that_refuses_the_file_costs_the_file(
    run_folder: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (run_folder / "steps.jsonl").mkdir()
    monkeypatch.setenv("ALLRANKS_ATTEMPT_DIR", str(run_folder))
    trainer = trained(epochs=30, log_every=1)
    assert trainer.step == 150
    assert capsys.readouterr().out.count("cannot be written to steps.jsonl") == 1


def test_short_windows_are_put_together(tmp_path: Path) -> None:
    """The first line at once, then a mean over steps; null where no rank knew."""
    file = StepTimesFile(tmp_path, 2, print)
    file.add(2, 1, 2, [1.0, 0.1, -1.0, -1.0, 1.0, 0.1, -1.0, -1.0])
    file.add(4, 1, 2, [1.0, 0.1, 0.5, 0.0, 1.0, 0.1, 0.25, 0.25])
    file.add(5, 1, 1, [4.0, 0.123456, 0.5, 0.0, 4.0, 0.1, 0.25, 0.25])
    file.close()
    first, second = steps_of(tmp_path)
    assert (first["step"], first["compute_seconds"]) == (2, [None, None])
    assert (second["step"], second["step_seconds"]) == (5, [2.0, 2.0])
    assert second["data_seconds"] == [0.1078, 0.1]
    assert second["compute_seconds"] == [0.5, 0.25]


def test_which_steps_are_marked() -> None:
    """Ever more seldom until it is known how long a step takes, then about every so many seconds."""
    cpu = torch.device("cpu")
    context: Any = SimpleNamespace(step=lambda data, share: True, config=quiet(), device=cpu)
    sampler, plain = StepSampler(context, PhaseTimer(cpu, waits_for_ranks=False)), context.step
    sampler.begin(0, standard=False)
    marked = []
    for step in range(1, 1000):
        if context.step is not plain:
            marked.append(step)
        if step == 50:
            sampler.step_seconds = 0.01
        if step >= sampler.next:
            sampler.update(step)
    assert marked[:6] == [3, 6, 11, 20, 37, 70]
    gaps = [b - a for a, b in itertools.pairwise(marked[6:])]
    often = SECONDS["cpu"] / 0.01
    assert len({*gaps}) > 2  # else they might keep step with what comes back every so often
    assert 0.5 * often - 1 <= min(gaps) <= max(gaps) <= 1.5 * often + 1
