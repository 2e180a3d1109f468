"""What weights take in memory before any are there: the words between who knows a model and who knows how it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSize:
    """One weight of a model as it is built."""

    elements: int
    """How many numbers it has."""
    bytes_each: int
    """The size of one."""
    trained: bool
    """Whether an optimizer changes it."""

    @property
    def bytes(self) -> int:
        """The size of all."""
        return self.elements * self.bytes_each


@runtime_checkable
class SaysMemory(Protocol):
    """A trainer's configuration that says what its state takes on the device of one rank."""

    def bytes_per_rank(self, weights: Sequence[WeightSize], world_size: int) -> Mapping[str, int]:
        """Bytes of `weights`, `gradients` and `optimizer`, without activations and what is gathered for a moment.

        Args:
            weights: of the model.
            world_size: how many ranks train together.
        """
        ...
