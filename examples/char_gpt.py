"""A small GPT that reads Python's own help texts by letters and then writes some lines.

python examples/char_gpt.py
python examples/char_gpt.py --nprocs 2 --strategy fsdp
allranks run --nprocs 2 examples/char_gpt.py --precision bf16
torchrun --nproc-per-node 2 examples/char_gpt.py
"""

import argparse
import pydoc_data.topics

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from allranks import TrainConfig, Trainer, world

TEXT = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
LETTERS = sorted(set(TEXT))
LENGTH = 64  # letters that are read at once


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the text; the target is the piece one letter on."""

    def __init__(self, text: str) -> None:
        place = {letter: index for index, letter in enumerate(LETTERS)}
        self.letters = torch.tensor([place[letter] for letter in text])

    def __len__(self) -> int:
        return (len(self.letters) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.letters[index * LENGTH : (index + 1) * LENGTH + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Attention to what came before, then a small network for each letter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (
            part.view(shape).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.network(self.before_network(x))


class Gpt(nn.Module):
    """Letters in, for each place the logits of the letter that follows."""

    def __init__(self, width: int = 128, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(LETTERS)))

    def forward(self, letters: Tensor) -> Tensor:
        place = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.blocks(self.letter(letters) + self.place(place)))


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over all letters of all pieces."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


@torch.no_grad()
def write(model: Gpt, count: int, start: str = "The ") -> str:
    """Go on after ``start``, one letter at a time."""
    device = next(model.parameters()).device
    letters = torch.tensor([[LETTERS.index(letter) for letter in start]], device=device)
    for _ in range(count):
        logits = model(letters[:, -LENGTH:])[:, -1] / 0.8
        letters = torch.cat([letters, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    return "".join(LETTERS[index] for index in letters[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's help texts.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--nprocs", type=int, help="processes; a launcher's own number wins")
    parser.add_argument("--strategy", default="auto", help="auto, single, ddp or fsdp")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16", "fp16"])
    parser.add_argument("--compile", action="store_const", const=True, default="auto")
    args = parser.parse_args()
    config = TrainConfig(**vars(args), batch_size_is="global", clip_norm=1.0)

    torch.manual_seed(0)
    cut = len(TEXT) * 9 // 10
    train, held = Windows(TEXT[:cut]), Windows(TEXT[cut:])
    model = Gpt()
    trainer = Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=2e-3), config, loss_fn=loss_of
    )
    model, _ = trainer.fit(
        DataLoader(train, batch_size=32, shuffle=True), DataLoader(held, batch_size=64)
    )
    text = write(model.eval(), 300)  # on all processes, since each may hold a part of the model
    if world().is_main:
        print(f"validation loss {trainer.metrics['val_loss']:.3f}; it writes:\n\n{text}")


if __name__ == "__main__":
    main()
