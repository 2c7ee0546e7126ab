"""Mistakes are told in a sentence, and failures leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from trainer_rig import endless, line, points, quiet  # noqa: E402

from allranks import TrainConfig, Trainer, prepare  # noqa: E402
from allranks.errors import UsageError  # noqa: E402
from allranks.train.callbacks import Callback  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("own_folder")]


def test_a_failing_step_is_told_to_callbacks_and_leaves_no_bar() -> None:
    seen: list[BaseException] = []

    class Ears(Callback):
        def on_exception(self, trainer: Any, error: BaseException) -> None:
            seen.append(error)

    def broken(model: Any, batch: Any) -> Any:
        raise RuntimeError("a mistake")

    model, optimizer = line()
    with pytest.raises(RuntimeError, match="a mistake"):
        Trainer(model, optimizer, quiet(), loss_fn=broken, callbacks=[Ears()]).fit(
            DataLoader(points(), 8)
        )
    assert [str(error) for error in seen] == ["a mistake"]


def test_a_loss_that_is_not_a_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = line()
    optimizer.param_groups[0]["lr"] = 1e30
    Trainer(model, optimizer, quiet(epochs=2, log_every=1)).fit(DataLoader(points(), 8))
    out = capsys.readouterr().out
    assert out.count("WARNING: the loss is") == 1


def plateau_per_step() -> None:
    model, optimizer = line()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    Trainer(model, optimizer, quiet(), scheduler=scheduler).fit(DataLoader(points(), 8))


MISTAKES: list[tuple[Any, str]] = [
    (lambda: TrainConfig(max_itr=3), "Did you mean 'max_iter'?"),
    (lambda: TrainConfig(precision="fp8"), "precision='fp8': must be one of fp32, tf32, bf16, fp16"),
    (lambda: TrainConfig(epochs=2, max_iter=3), "mean the same"),
    (lambda: TrainConfig(accumulate=0), "accumulate=0: must be at least 1"),
    (lambda: Trainer(*line(), quiet(), loss_fn="mean"), "loss_fn='mean' is unknown"),
    (lambda: Trainer(*line(), quiet()).fit(None), "There is no training data"),
    (lambda: Trainer(*line(), quiet(compute_setup="gpu")).fit([1]), "sees no GPU"),
    (lambda: Trainer(*line(), quiet(precision="fp16")).fit([1]), "precision='fp16' needs a GPU"),
    (lambda: Trainer(line()[0], None, quiet()).fit([1]), "There is no optimizer"),
    (lambda: Trainer(*line(), quiet()).fit(3), "The data is of type int"),
    (lambda: Trainer(*line(), quiet(resume="nowhere")).fit([1]), "there is no such folder"),
    (lambda: TrainConfig(max_time="2 hrs"), "2 hrs"),
    (lambda: TrainConfig(epochs="3"), "epochs='3': must be a whole number"),
    (lambda: TrainConfig(accumulate=2.0), "accumulate=2.0: must be a whole number"),
    (lambda: TrainConfig(clip_norm=-1.0), "clip_norm=-1.0: must be at least 0"),
    (lambda: TrainConfig(compile="max-autotun"), "Did you mean 'max-autotune'?"),
    (lambda: Trainer(*line(), {"epochs": 3}), "The config is a dict"),
    (lambda: plateau_per_step(), "scheduler_every='epoch'"),
    (lambda: Trainer(*line(), quiet(patience=1, val_every=0)).fit(
        DataLoader(points(), 8), DataLoader(points(), 8)), "val_every=0 switches them off"),
    (lambda: Trainer(*line(), quiet(max_steps=3)).fit([]), "The training data gave no batch"),
    (lambda: Trainer(*line(), quiet(max_iter=3)).fit(endless()), "The training data never ends"),
    (lambda: Trainer(*line(), quiet(), loss_fn=lambda net, batch: net(batch[0])).fit([points()[:]]),
     "a parameter called `model`"),
    (lambda: Trainer(line()[0], line()[1], quiet()).fit([1]), "has no parameter of this model"),
    (lambda: Trainer(*line(), quiet(patience=2, monitor="val_loss")).fit(DataLoader(points(), 8)),
     "is measured on validation data"),
    (lambda: Trainer(*line(), quiet(clip_norm=1.0), optimize_step=lambda *a: None).fit([1]),
     "clip_norm=1.0 does not work with it"),
    (lambda: prepare(*line(), ema=0.9), "prepare() does not use 'ema'"),
    (lambda: Trainer(lambda x: x, None), "not a torch.nn.Module"),
    (lambda: Trainer(line()[0], "adam", quiet()).fit([1]), "Optimizer 0 is a str"),
    (lambda: Trainer(*line(), quiet(loggers=["tensorbord"])).fit(DataLoader(points(), 8)), "tensorboard"),
    (lambda: Trainer(*line(), quiet()).fit([torch.ones(3, 1)]), "needs (inputs, target)"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistakes_are_told(mistake: Any, message: str) -> None:
    if torch.cuda.is_available() and "GPU" in message:
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError) as caught:
        mistake()
    assert message in str(caught.value)
