"""Batch norms over ranks: the same statistics at validation, and last batches of one sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from ranks_script import Curve, config, points, sgd
from torch import nn
from torch.utils.data import DataLoader


def scenarios() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "batch norm", batch_norm
    yield "batch norm synchronised", partial(batch_norm, sync_batchnorm=True)
    yield "batch norm uneven", partial(batch_norm, 35)


def batch_norm(samples: int = 32, **fields: Any) -> dict[str, Any]:
    """After 32 samples, 3 are left: 2 for rank 0 and 1 for rank 1."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    trainer = Curve(model, sgd(model), config(epochs=2, **fields))
    trainer.fit(DataLoader(points(samples), 16, shuffle=True), DataLoader(points(9), 4))
    with torch.no_grad():
        own = model.eval()(points(9).tensors[0].double()).flatten().tolist()
    return {"val": trainer.validated, "own": own, "steps": trainer.step}
