"""A tiny GAN on points of a ring: two optimizers and one's own training step.

python examples/gan.py
python examples/gan.py --nprocs 2
allranks run --nprocs 2 examples/gan.py
torchrun --nproc-per-node 2 examples/gan.py
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from allranks import TrainConfig, Trainer, world

NOISE = 4


class Gan(nn.Module):
    """Both networks in one module, so that the Trainer moves, wraps and saves them together."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(NOISE, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2),
        )
        self.critic = nn.Sequential(
            nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)


class GanTrainer(Trainer):
    def training_step(self, model: Any, batch: Any, step: Any) -> Any:
        """Train the critic to tell real from generated points, then the generator to deceive it."""
        (real,) = batch
        made = model.generator(torch.randn(len(real), NOISE, device=real.device))

        critic_loss = (
            functional.softplus(-model.critic(real)).mean()
            + functional.softplus(model.critic(made.detach())).mean()
        )
        step.backward(critic_loss)
        step.update("critic")

        generator_loss = functional.softplus(-model.critic(made)).mean()
        step.backward(generator_loss)
        step.update("generator")

        radius = made.detach().norm(dim=1)
        return generator_loss, {"critic_loss": critic_loss, "radius": radius.mean()}


def ring(count: int) -> Tensor:
    """Points at distance 2 from the origin, a little blurred."""
    angle = 2 * torch.pi * torch.rand(count)
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(count, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn to draw points on a ring.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--nprocs", type=int, help="processes; a launcher's own number wins")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Gan()
    optimizers = {
        "generator": torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        "critic": torch.optim.Adam(model.critic.parameters(), lr=3e-3, betas=(0.5, 0.9)),
    }
    config = TrainConfig(
        epochs=args.epochs,
        nprocs=args.nprocs,
        batch_size_is="global",
        print_every=max(1, args.epochs // 10),
    )
    trainer = GanTrainer(model, optimizers, config)
    model, _ = trainer.fit(DataLoader(TensorDataset(ring(4096)), batch_size=128, shuffle=True))

    device = next(model.parameters()).device
    with torch.no_grad():
        radius = model(torch.randn(2000, NOISE, device=device)).norm(dim=1)
    if world().is_main:
        print(f"distance of made points from the origin: {radius.mean():.2f} ± {radius.std():.2f}")
        print("of real ones: 2.00 ± 0.05")


if __name__ == "__main__":
    main()
