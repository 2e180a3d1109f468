"""`TrainerState`: all that training needs to go on, in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlinf.core.errors import ShapeError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """All that training needs to go on, whole, on the CPU; on other ranks than 0 without tensors."""

    version: int
    """Optimizer steps that made it."""
    tensors: dict[str, Tensor]
    """`model/<name>`, `optimizer/<name>/<key>` and the scale of the loss."""

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def check_names(found: set[str], expected: set[str]) -> None:
    """Refuses the state of another model.

    Raises:
        ShapeError: names the first weight that only one of them has.
    """
    differing = sorted(found ^ expected)
    if differing:
        raise ShapeError(
            "rebuild(state)", f"made for another model: '{differing[0]}'", "Build the policy from the same configuration."
        )
