"""``optimize_step``: one gradient step, for `Trainer(optimize_step=…)` and for loops of one's own."""

from __future__ import annotations

from typing import Any


def optimize_step(
    model: Any, optimizer: Any, loss_fn: Any, xs: Any, device: Any = None, dtype: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Forward, backward and one step of ``optimizer``; returns the loss and the metrics.

    ``loss_fn`` is what the Trainer takes: a name, a criterion, or a function of (model, batch). The
    Trainer recognises this very function and runs its own, faster path for it. The loss stays on
    its device: ``float(loss)`` waits for it.
    """
    from allranks.train.data import to_device
    from allranks.train.objective import make_compute

    batch = xs if device is None and dtype is None else to_device(xs, device, dtype)
    optimizer.zero_grad()
    loss, metrics = make_compute(loss_fn)(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach(), dict(metrics)
