"""A small Vision Transformer reads handwritten digits: about 98 of 100 after a quarter of a minute.

python examples/vit_digits.py
python examples/vit_digits.py --nprocs 2
allranks run --nprocs 2 examples/vit_digits.py
torchrun --nproc-per-node 2 examples/vit_digits.py
allranks run --nprocs 2 examples/vit_digits.py --strategy fsdp
allranks run --nprocs 2 examples/vit_digits.py --strategy deepspeed --deepspeed_config ds_config.json
"""

import argparse
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world
from allranks.train.strategies import DeepSpeed

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("The digits come with scikit-learn. Install it with: pip install scikit-learn")

SIDE, PATCH, CLASSES = 8, 2, 10
PATCHES = (SIDE // PATCH) ** 2


class Vit(nn.Module):
    """16 patches of 2 x 2 pixels, a few transformer layers, a linear reader of all of them."""

    def __init__(self, width: int = 32, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Linear(PATCH * PATCH, width)
        self.place = nn.Parameter(0.02 * torch.randn(PATCHES, width))
        self.blocks = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(
                    width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(PATCHES * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            images = images + 0.1 * torch.randn_like(images)
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        seen = self.blocks(self.patch(patches) + self.place)
        return self.head(self.norm(seen).flatten(1))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of digits read rightly."""
    return (output.argmax(dim=1) == target).float().mean()


def digits() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """1797 digits: 1257 to train with, 180 to validate, 360 to test; the same split in every run."""
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32) / 16 - 0.3
    classes = torch.tensor(loaded.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    parts = (order[540:], order[360:540], order[:360])
    train, val, test = (TensorDataset(images[part], classes[part]) for part in parts)
    return train, val, test


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Vision Transformer on digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--nprocs", type=int, help="processes; a launcher's own number wins")
    parser.add_argument("--strategy", default="auto", help="auto, single, ddp, fsdp or deepspeed")
    parser.add_argument("--deepspeed_config", help="a ds_config.json; without it ZeRO stage 1")
    parser.add_argument("--batch", type=int, default=64, help="over all processes together")
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    strategy = args.strategy
    if args.deepspeed_config:
        strategy = DeepSpeed(args.deepspeed_config)

    torch.manual_seed(args.seed)
    train, val, test = digits()
    model = Vit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    steps = args.epochs * -(-len(train) // args.batch)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(  # up for a tenth, then down as a cosine
        optimizer, args.lr, total_steps=max(steps, 2), pct_start=0.1
    )
    config = TrainConfig(
        epochs=args.epochs,
        nprocs=args.nprocs,
        strategy=strategy,
        batch_size_is="global",
        seed=args.seed,
        print_every=max(1, args.epochs // 10),
    )
    trainer = Trainer(
        model,
        optimizer,
        config,
        loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1),
        scheduler=scheduler,
        metrics={"accuracy": accuracy},
    )
    trainer.fit(
        DataLoader(train, batch_size=args.batch, shuffle=True), DataLoader(val, batch_size=180)
    )
    result = trainer.test(DataLoader(test, batch_size=180))

    if world().is_main:
        print(
            f"test accuracy {result['test_accuracy']:.1%} of {len(test)} digits never seen before"
        )
        print(f"logs, curves and checkpoints: {trainer.folder}")


if __name__ == "__main__":
    main()
