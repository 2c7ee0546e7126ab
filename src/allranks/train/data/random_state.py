"""Separate random states: drawing inside one does not change the global generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed torch's CPU generator, random and numpy of this process."""
    # Not torch.manual_seed, which would seed the GPUs as well.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


class FreshRandomState:
    """``with state.of(seed):`` starts from a seed each time and restores the global generators."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)
        self._outside: tuple[Any, Any, Any] = (None, None, None)

    def of(self, seed: int) -> FreshRandomState:
        """Set the seed of the next ``with`` block."""
        self._seed = seed
        return self

    def __enter__(self) -> None:
        self._outside = (torch.get_rng_state(), random.getstate(), _swap_numpy_state(self._numpy))
        seed_all(self._seed)

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._outside[0])
        random.setstate(self._outside[1])
        _restore_numpy_state(self._numpy, self._outside[2])


class OwnRandomState:
    """``with state:`` torch, random and numpy continue from the end of the previous ``with`` block.

    All ranks draw the same inside, whatever their dropout has drawn in between.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numpy = np.random.MT19937(seed)
        self._inside: tuple[Any, Any] | None = None
        self._outside: tuple[Any, Any] = (None, None)
        self._outside_numpy: Any = None

    def __enter__(self) -> None:
        self._outside = torch.get_rng_state(), random.getstate()
        self._outside_numpy = _swap_numpy_state(self._numpy)
        if self._inside is not None:
            torch.set_rng_state(self._inside[0])
            random.setstate(self._inside[1])
            return
        torch.default_generator.manual_seed(self._seed)
        random.seed(self._seed)

    def __exit__(self, *_: object) -> None:
        self._inside = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(self._outside[0])
        random.setstate(self._outside[1])
        _restore_numpy_state(self._numpy, self._outside_numpy)


def _numpy_random() -> Any:
    """Return numpy.random, which numpy loads on first access."""
    return np.random


def _swap_numpy_state(generator: Any) -> Any:
    """Make ``generator`` numpy's global one and return the previous one.

    The generator itself is exchanged where numpy supports it: its state is slow to copy.
    """
    numpy = _numpy_random()
    if hasattr(numpy, "set_bit_generator"):
        before = numpy.get_bit_generator()
        numpy.set_bit_generator(generator)
        return before
    state = numpy.get_state(legacy=False)
    numpy.set_state(generator.state)
    return state


def _restore_numpy_state(generator: Any, before: Any) -> None:
    numpy = _numpy_random()
    if hasattr(numpy, "set_bit_generator"):
        numpy.set_bit_generator(before)
        return
    generator.state = numpy.get_state(legacy=False)
    numpy.set_state(before)
