"""The factor that keeps small gradients of 16-bit floats from becoming 0."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# Beginning and patience are those of torch's `GradScaler`.
FIRST = 2.0**16
LARGEST = 2.0**24
PATIENCE = 2000
"""Steps without an overflow after which the factor doubles."""


class LossScale:
    """Multiplies the loss; gradients are divided by it before they are clipped, in the one division that they get anyway.

    float16 has no number between 0 and 6e-8. Where a scaled gradient overflows, the step is skipped and the factor halved; after
    2,000 steps without that it doubles. Micikevicius et al., "Mixed Precision Training" (2017), §3.2, arXiv:1710.03740.

    Args:
        enabled: whether anything computes in float16; otherwise the factor is 1 for ever.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.factor = FIRST if enabled else 1.0
        self._clean = 0

    def update(self, *, overflow: bool) -> None:
        """After each step; the same on every rank."""
        if not self.enabled:
            return
        self._clean = 0 if overflow else self._clean + 1
        if overflow:
            self.factor = max(1.0, self.factor / 2)
        elif self._clean == PATIENCE:
            self.factor, self._clean = min(LARGEST, 2 * self.factor), 0

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; nothing where it is not used."""
        return {"loss_scale": torch.tensor([self.factor, float(self._clean)], dtype=torch.float64)} if self.enabled else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state` gave; a checkpoint without it leaves the factor as it is."""
        if self.enabled and "loss_scale" in state:
            self.factor, clean = (float(number) for number in state["loss_scale"])
            self._clean = int(clean)
