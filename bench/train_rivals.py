"""The loops of other libraries, each as its own documentation writes it.

Checkpoints are off, since some would fall into the measured steps and some not; all else is as the
library has it by default, unless the name says otherwise.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from train_loops import Setting, WithLoss
from train_models import cross_entropy


def accelerate(setting: Setting) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(
        cpu=not setting.cuda, mixed_precision="bf16" if setting.cuda else "no"
    )
    model = setting.model()
    whole = setting.compiled(WithLoss(model))
    whole, optimizer, loader = accelerator.prepare(
        whole, setting.optimizer(model), setting.loader()
    )
    for inputs, target in islice(loader, setting.steps):
        optimizer.zero_grad()
        accelerator.backward(whole(inputs, target))
        optimizer.step()


def fabric(setting: Setting) -> None:
    from lightning.fabric import Fabric

    made = Fabric(
        accelerator="cuda" if setting.cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if setting.cuda else "32-true",
    )
    made.launch()
    model = setting.model()
    whole, optimizer = made.setup(setting.compiled(WithLoss(model)), setting.optimizer(model))
    for inputs, target in islice(made.setup_dataloaders(setting.loader()), setting.steps):
        optimizer.zero_grad()
        made.backward(whole(inputs, target))
        optimizer.step()


def _lightning(setting: Setting, **options: Any) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = setting.model()
            self.whole = setting.compiled(WithLoss(self.model))

        def training_step(self, batch: Any, index: int) -> Tensor:
            return self.whole(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return setting.optimizer(self.model)

    lightning.Trainer(
        max_steps=setting.steps,
        accelerator="gpu" if setting.cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if setting.cuda else "32-true",
        enable_checkpointing=False,
        default_root_dir=str(setting.folder),
        **options,
    ).fit(Module(), setting.loader())


def lightning_default(setting: Setting) -> None:
    _lightning(setting)


def lightning_bare(setting: Setting) -> None:
    """Without bar, log and summary."""
    _lightning(setting, logger=False, enable_progress_bar=False, enable_model_summary=False)


def ignite(setting: Setting) -> None:
    from ignite.engine import create_supervised_trainer

    model = setting.model().to(setting.device)
    engine = create_supervised_trainer(
        model, setting.optimizer(model), cross_entropy, device=setting.device
    )
    engine.run(setting.loader(), max_epochs=1, epoch_length=setting.steps)


class _Labelled(nn.Module):
    """What the Transformers Trainer wants: named inputs in, a dictionary with the loss out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.model(inputs), labels)}


def _named(batch: Any) -> dict[str, Tensor]:
    return {"inputs": batch[0], "labels": batch[1]}


def transformers(setting: Setting) -> None:
    from transformers import Trainer, TrainingArguments

    class OwnData(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(setting.loader(collate=_named))

    model = setting.model()
    arguments = TrainingArguments(
        output_dir=str(setting.folder),
        max_steps=setting.steps,
        use_cpu=not setting.cuda,
        bf16=setting.cuda,
        torch_compile=setting.tuned,
        save_strategy="no",
        report_to="none",
    )
    optimizer = setting.optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    OwnData(
        _Labelled(model),
        arguments,
        train_dataset=setting.work.dataset(setting.steps * setting.work.batch),
        optimizers=(optimizer, schedule),
    ).train()
