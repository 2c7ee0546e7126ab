"""Goes on, on two ranks, from what one process saved: ``ranks_script_joined.py CHECKPOINT``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from trainer_rig import line, points, quiet

from allranks import Trainer

torch.set_num_threads(1)


def measured(model: Any, batch: Any) -> Any:
    loss = (model(batch[0]) - batch[1]).square().mean()
    return loss, {"twice": 2 * loss.detach()}


def main() -> None:
    config = quiet(
        epochs=2, nprocs=2, batch_size_is="global", timeout="60s", log_every=1000,
        compute_setup="cpu", checkpoint=False, resume=sys.argv[1],
    )  # fmt: skip
    trainer = Trainer(*line(), config, loss_fn=measured)
    trainer.fit(torch.utils.data.DataLoader(points(), 8))
    trainer.say(f"ended at {trainer.step} on {trainer.world.size} ranks")


if __name__ == "__main__":
    main()
