"""One GPU as the sampler sees it, whoever made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from allranks.errors import AllranksError


class GpuError(AllranksError):
    """A GPU, or the library that speaks with it, does not answer any more."""


class Reading(NamedTuple):
    """What changes from second to second; None where the device does not tell."""

    use: float | None
    """From 0 to 1."""
    memory: int | None
    """Bytes."""
    power: float | None
    """Watts."""


class Gpu(ABC):
    """A device, and how it is asked. No dataclass: that import is half of an agent's start."""

    def __init__(
        self,
        *,
        number: int,
        name: str,
        uuid: str,
        memory_total: int | None,
        power_limit: float | None,
    ) -> None:
        self.number = number
        """On the node."""
        self.name = name
        self.uuid = uuid
        self.memory_total = memory_total
        self.power_limit = power_limit

    @abstractmethod
    def read(self) -> Reading:
        """Now. Raises `GpuError` when the device is lost."""

    @abstractmethod
    def temperature(self) -> float | None:
        """Degrees Celsius, now."""

    def facts(self) -> dict[str, Any]:
        """What stays the same, as the node's file has it."""
        return {
            "gpu": self.number,
            "name": self.name,
            "uuid": self.uuid,
            "memory_total": self.memory_total,
            "power_limit": self.power_limit,
        }
