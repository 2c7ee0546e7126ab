"""The interface of a GPU, for every vendor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from allranks.errors import AllranksError


class GpuError(AllranksError):
    """A GPU or its driver library does not answer any more."""


class GpuReading(NamedTuple):
    """Values that change every second; None where the device does not report them."""

    use: float | None
    """From 0 to 1."""
    memory: int | None
    """Bytes."""
    power: float | None
    """Watts."""


class Gpu(ABC):
    """One device. No dataclass: that import is half of an agent's start-up time."""

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
        """The index on the node."""
        self.name = name
        self.uuid = uuid
        self.memory_total = memory_total
        self.power_limit = power_limit

    @abstractmethod
    def read(self) -> GpuReading:
        """Read the device now. Raises `GpuError` when it is lost."""

    @abstractmethod
    def temperature(self) -> float | None:
        """Return the temperature in degrees Celsius."""

    def facts(self) -> dict[str, Any]:
        """Return the constant properties, as the node's file has them."""
        return {
            "gpu": self.number,
            "name": self.name,
            "uuid": self.uuid,
            "memory_total": self.memory_total,
            "power_limit": self.power_limit,
        }
