"""Adaptive sampling of training points, as in physics-informed training.

``R3Dataset`` retains the points whose fitness is above average and resamples the others (retain, resample,
release: Daw et al. 2023). ``Resample`` updates it, or any dataset with ``update(fitness)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import UsageError
from allranks.train.callbacks.base import Callback, TrainerView
from allranks.train.callbacks.plots_and_models import evaluating


class Resample(Callback):
    """Calls ``dataset.update(fitness_function(model, dataset))`` every N epochs.

    All ranks use rank 0's fitness: their own may differ in the last digit, and their points must not.
    Workers of a DataLoader with ``persistent_workers=True`` would keep the old points: do not use it.
    """

    def __init__(
        self, dataset: Any, fitness_function: Callable[[Any, Any], Any], every: int = 1
    ) -> None:
        if not callable(getattr(dataset, "update", None)):
            kind = type(dataset).__name__
            raise UsageError(f"Resample: {kind} has no update(fitness); see R3Dataset for one.")
        if every < 1:
            raise UsageError(f"Resample: every={every} must be at least 1.")
        self.dataset, self.fitness_function, self.every = dataset, fitness_function, every

    def on_epoch_end(self, trainer: TrainerView) -> None:
        if trainer.epoch % self.every:
            return
        with evaluating(trainer.model):
            fitness = self.fitness_function(trainer.model, self.dataset)
        self.dataset.update(_from_rank_0(fitness.detach(), trainer))

    def state_dict(self) -> dict[str, Any]:
        give = getattr(self.dataset, "state_dict", None)
        return {} if give is None else {"dataset": give()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.dataset.load_state_dict(state["dataset"])


class R3Dataset:
    """A map-style dataset of ``size`` points drawn by ``sample(n) -> Tensor`` (on the CPU).

    Points with a fitness above ``threshold`` times the mean fitness stay. Every rank draws the same
    points: torch's generator is seeded for the draw, from ``seed`` and the number of updates, and put
    back afterwards.
    """

    def __init__(
        self, sample: Callable[[int], Any], size: int, threshold: float = 1.0, seed: int = 0
    ) -> None:
        if size < 1:
            raise UsageError(f"R3Dataset: size={size} must be at least 1.")
        self.sample, self.size, self.threshold, self.seed = sample, size, threshold, seed
        self.updates = 0
        self.points = self._draw(size)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.points[index]

    def update(self, fitness: Any) -> None:
        """Keep the points of high fitness, one number per point, and replace the others."""
        if fitness.numel() != self.size:
            raise UsageError(
                f"R3Dataset has {self.size} points, but the fitness has {fitness.numel()} values: "
                "the fitness function must give one number per point, in order."
            )
        fitness = fitness.detach().reshape(-1).to(self.points.device)
        self.updates += 1
        released = ~(fitness > self.threshold * fitness.mean())
        self.points = self.points.clone()
        if count := int(released.sum()):
            self.points[released] = self._draw(count)

    def state_dict(self) -> dict[str, Any]:
        """Return the points and the number of updates."""
        return {"points": self.points, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the points of a resumed run."""
        self.points, self.updates = state["points"], int(state["updates"])

    def _draw(self, count: int) -> Any:
        import torch

        before = torch.get_rng_state()
        torch.default_generator.manual_seed(
            self.seed + self.updates
        )  # the generators of GPUs are not touched
        try:
            drawn = self.sample(count)
        finally:
            torch.set_rng_state(before)
        if len(drawn) != count:
            raise UsageError(f"R3Dataset: sample({count}) gave {len(drawn)} points.")
        return drawn.detach()


def _from_rank_0(fitness: Any, trainer: TrainerView) -> Any:
    if trainer.world.size == 1:
        return fitness
    import torch.distributed as dist

    shared = fitness.to(trainer.device).contiguous()
    dist.broadcast(shared, src=0)
    return shared.to(fitness.device)
