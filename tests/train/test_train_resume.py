"""Going on after an end at any moment: the same numbers, bit by bit, as without it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402
from trainer_rig import line, points, quiet, untimed  # noqa: E402

from allranks import Trainer  # noqa: E402
from allranks.errors import REPLACED_EXIT_CODE, UsageError  # noqa: E402
from allranks.train.callbacks import EarlyStopping, When  # noqa: E402
from allranks.train.checkpoint.checkpoint_folder import CheckpointStore  # noqa: E402
from allranks.train.checkpoint.checkpoint_reader import CheckpointReader  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


class Killed(Exception):
    """Stands for a kill: nothing of the training's own end is done."""


class Noisy(Dataset):  # type: ignore[type-arg]
    """Random numbers of torch, NumPy and Python in every sample."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        x = torch.full((3,), index / 22) + 0.1 * torch.randn(3)
        return x * random.uniform(0.9, 1.1), x.sum().reshape(1)


class Drawn(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        for _ in range(22):
            x = torch.randn(3)
            yield x, x.sum().reshape(1)


def train(data: Any, kill: int = 0, **fields: Any) -> tuple[Trainer, dict[str, Any]]:
    """With all that a resumption can get wrong; ``kill`` ends it after so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    patience = EarlyStopping("train_loss", patience=50)

    def end(trainer: Any) -> None:
        if trainer.step == kill:
            raise Killed

    settings: dict[str, Any] = {
        "epochs": 3, "ema": 0.9, "clip_norm": 1.0, "log_every": 4, "checkpoint_every_steps": 3,
        "warmup_steps": 3,
    }  # fmt: skip
    config = quiet(**{**settings, **fields})
    callbacks = [patience, When("step_end", end)]
    trainer = Trainer(model, optimizer, config, scheduler=scheduler, callbacks=callbacks)
    loader = data if isinstance(data, DataLoader) else DataLoader(data, 4, shuffle=True)
    try:
        trainer.fit(loader, DataLoader(points3(), 4))
    except Killed:
        return trainer, {}
    return trainer, saved(trainer.folder)


def points3() -> Any:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 3, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def saved(folder: Path) -> dict[str, Any]:
    """All that the last checkpoint and the curve hold, without times."""
    reader = CheckpointReader((folder / "checkpoints" / "latest").resolve())
    keys = [key for key in reader.manifest.tensors if key != "state"]
    state = reader.blob("state")
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [untimed(row) for row in rows]
    small = {name: state[name] for name in ("schedulers", "callbacks", "progress")}
    return {
        "tensors": {key: reader.tensor(key).clone() for key in keys},
        "small": json.dumps(small, default=str),
        "curve": curve,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["tensors"].keys() == other["tensors"].keys()
    for key, value in one["tensors"].items():
        assert torch.equal(value, other["tensors"][key]), key
    assert one["curve"] == other["curve"]
    assert one["small"] == other["small"]


CASES: dict[str, dict[str, Any]] = {
    "anywhere": {"kills": [1, 9, 9, 15]},
    "accumulated": {"kills": [5], "accumulate": 2, "checkpoint_async": False},
    "at the end of an epoch": {"kills": [7, 13], "scheduler_every": "epoch"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_equals_one_that_was_never_interrupted(
    case: str, run_folder: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = dict(CASES[case])
    kills = fields.pop("kills")
    (tmp_path / "whole").mkdir()
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path / "whole"))
    _, whole = train(Noisy(), **fields)
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(run_folder))
    for kill in kills:
        new_process()
        train(Noisy(), kill=kill, **fields)
    new_process()
    _, parts = train(Noisy(), **fields)
    same(whole, parts)


@pytest.mark.parametrize(("kind", "workers"), [(Noisy, 2), (Drawn, 0), (Drawn, 2)])
def test_random_numbers_of_the_data_go_on(
    kind: Any, workers: int, run_folder: Path, new_process: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(kind(), 4, shuffle=kind is Noisy, num_workers=workers)

    (tmp_path / "whole").mkdir()
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path / "whole"))
    _, whole = train(loader(), epochs=2, accumulate=2)
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(run_folder))
    new_process()
    train(loader(), kill=5, epochs=2, accumulate=2)
    new_process()
    _, parts = train(loader(), epochs=2, accumulate=2)
    same(whole, parts)


def test_two_fits_of_a_script_each_find_their_own(run_folder: Path, new_process: Any) -> None:
    def script(second: int, kill: int = 0) -> list[int]:
        new_process()
        first, _ = train(Noisy(), epochs=1)
        firsts = [first.context.state.first_step]
        again, _ = train(Noisy(), kill=kill, epochs=second, checkpoint_async=False)
        return [*firsts, again.context.state.first_step, again.step]

    assert script(2, kill=10) == [0, 0, 10]
    assert script(2) == [6, 9, 12]
    assert len([*run_folder.glob("checkpoints*")]) == 2
    rows = [json.loads(text) for text in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "epoch"] == [6, 6, 12]


def test_a_finished_training_that_is_started_again(
    run_folder: Path, new_process: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, done = train(Noisy(), epochs=2)
    new_process()
    trainer, again = train(Noisy(), epochs=2)
    assert "had finished at step 12, epoch 2" in capsys.readouterr().out
    same(done, again)
    assert trainer.metrics["train_loss"]
    assert trainer.step == 12
    with trainer.averaged():
        pass
    new_process()
    longer, _ = train(Noisy(), epochs=3)
    assert (longer.context.state.first_step, longer.step) == (12, 18)


def test_resume_names_a_run_a_step_or_a_link(run_folder: Path, new_process: Any) -> None:
    trainer, _ = train(Noisy(), epochs=2, checkpoint_keep=9, checkpoint_async=False)
    folder = trainer.folder / "checkpoints"
    for path, step in (
        (trainer.folder, 12), (folder, 12), (folder / "step-00000003", 3), (folder / "latest", 12),
    ):  # fmt: skip
        other, _ = train(Noisy(), epochs=3, resume=str(path))
        assert other.context.state.first_step == step
    fresh, _ = train(Noisy(), epochs=1, resume=False)
    assert fresh.context.state.first_step == 0
    with pytest.raises(UsageError, match="there is no such folder"):
        train(Noisy(), resume=str(folder / "step-00000005"))


def test_a_broken_checkpoint_is_set_aside_and_the_one_before_it_used(
    run_folder: Path, new_process: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    train(Noisy(), kill=10, checkpoint_async=False)
    folder = run_folder / "checkpoints"
    newest = CheckpointStore(folder).list_saved()[0].path
    file = newest / "rank-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    new_process()
    trainer, _ = train(Noisy())
    assert trainer.context.state.first_step == 6
    assert "WARNING: Checkpoint step-00000009 is broken" in capsys.readouterr().out
    assert (folder / "quarantine" / "step-00000009.txt").exists()


def test_a_model_that_does_not_fit_is_told_before_anything_changes(new_process: Any) -> None:
    model, optimizer = line()
    first = Trainer(model, optimizer, quiet())
    first.fit(DataLoader(points(), 8))
    wide, optimizer = line(2)
    before = wide.weight.detach().clone()
    config = quiet(resume=str(first.folder), name="other")
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    with pytest.raises(
        UsageError, match=r"does not match this one: 'weight' has shape \[1, 1\], here"
    ):
        Trainer(wide, optimizer, config).fit(DataLoader(data, 8))
    assert torch.equal(wide.weight, before)


def test_named_checkpoints_stay_and_names_are_checked() -> None:
    model, optimizer = line()
    keep = When("epoch_end", lambda t: t.save_checkpoint("mine") if t.epoch == 1 else None)
    config = quiet(epochs=4, checkpoint_every=1, checkpoint_keep=1)
    trainer = Trainer(model, optimizer, config, callbacks=[keep])
    trainer.fit(DataLoader(points(), 8))
    store = CheckpointStore(trainer.folder / "checkpoints")
    assert store.links()["mine"] == "step-00000005"
    assert {saved.step for saved in store.list_saved()} == {5, 20}
    for name in ("latest", "step-00000005", "a/b", ""):
        with pytest.raises(UsageError, match="save_checkpoint"):
            trainer.save_checkpoint(name)
    assert trainer.save_checkpoint("after") == store.folder / "after"


def test_another_batch_and_seed_go_on_at_the_same_sample(
    run_folder: Path, new_process: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    class Watched(Noisy):
        def __getitem__(self, index: int) -> Any:
            seen.append(index)
            return super().__getitem__(index)

    train(Watched(), kill=4, audit=False, checkpoint_async=False)
    seen_before = seen[: 3 * 4]  # the checkpoint is of step 3
    seen.clear()
    new_process()
    trainer, _ = train(DataLoader(Watched(), 5, shuffle=True), epochs=1, seed=99)
    assert "the training began with 1, which is kept" in capsys.readouterr().out
    assert sorted(seen_before + seen) == list(range(22))
    assert trainer.step == trainer.context.state.total_steps == 3 + 2  # 10 samples are left


def test_an_optimizer_of_another_kind_is_refused() -> None:
    model, optimizer = line()
    first = Trainer(model, optimizer, quiet())
    first.fit(DataLoader(points(), 8))
    config = quiet(resume=str(first.checkpoints), epochs=2)
    with pytest.raises(UsageError, match="The saved optimizer is SGD, but this one is Adam"):
        Trainer(model, torch.optim.Adam(model.parameters()), config).fit(DataLoader(points(), 8))


def test_a_finished_training_that_kept_the_best_alone(run_folder: Path, new_process: Any) -> None:
    def trained(epochs: int) -> tuple[int, int]:
        new_process()
        model, optimizer = line()
        config = quiet(epochs=epochs, checkpoint_best_only=True)
        trainer = Trainer(model, optimizer, config)
        trainer.fit(DataLoader(points(), 8), DataLoader(points(), 8))
        return trainer.context.state.first_step, trainer.step

    assert trained(2) == (0, 10)
    assert trained(2) == (10, 10)
    assert trained(3) == (10, 15)


def test_a_new_start_keeps_the_checkpoints_of_the_old_one_apart(
    run_folder: Path, new_process: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = line()
    Trainer(model, optimizer, quiet(max_steps=20)).fit(DataLoader(points(), batch_size=4))
    new_process()
    model, optimizer = line()
    Trainer(model, optimizer, quiet(max_steps=7, resume=False)).fit(
        DataLoader(points(), batch_size=4)
    )
    store = CheckpointStore(run_folder / "checkpoints")
    assert [saved.step for saved in store.list_saved()] == [7]
    assert [saved.step for saved in CheckpointStore(store.folder / "earlier").list_saved()] == [20]
    assert (store.folder / "latest").resolve().name == "step-00000007"
    assert "moved to" in capsys.readouterr().out


def test_a_training_that_was_replaced_ends(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = CheckpointStore(run_folder / "checkpoints")

    def replace(trainer: Any) -> None:
        if trainer.step == 6:
            store.take_over({})

    model, optimizer = line()
    config = quiet(max_steps=40, checkpoint_every_steps=4, checkpoint_async=False)
    trainer = Trainer(model, optimizer, config, callbacks=[When("step_end", replace)])
    with pytest.raises(SystemExit) as end:
        trainer.fit(DataLoader(points(), batch_size=4))
    assert end.value.code == REPLACED_EXIT_CODE
    assert [saved.step for saved in store.list_saved()] == [4]
    assert "another one took over" in capsys.readouterr().out
