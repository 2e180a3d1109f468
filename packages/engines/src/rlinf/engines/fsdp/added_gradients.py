"""The gradient of a second loss, which waits for that of the first.

    g = Σ ∇ totalₐ / Σ weightₐ  +  w · Σ ∇ totalᵦ / Σ weightᵦ        each sum over micro-batches and ranks

The two have denominators of their own, and a step divides by one, Σ weightₐ, which is known when its passes are over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rlinf.engines.layout import Layout


class AddedGradients:
    """What `add_policy_loss` keeps until the next step, in the memory of one gradient.

    Args:
        layout: where gradients lie.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def keep(self, parameters: Sequence[nn.Parameter], factor: float, weight: float) -> None:
        """Takes the gradients away from the parameters, divided.

        Args:
            parameters: whose gradients are summed over ranks.
            factor: by what the loss is multiplied.
            weight: Σ weight of the loss over all ranks; where that is 0, nothing counted and nothing is added.
        """
        for parameter in parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None or not weight > 0:
                continue
            self._layout.local(gradient).mul_(factor / weight)
            kept = self._kept.get(parameter)
            self._kept[parameter] = gradient if kept is None else kept.add_(gradient)

    @torch.no_grad()
    def join(self, parameters: Sequence[nn.Parameter], weight: Callable[[], float]) -> None:
        """Adds what was kept to the gradients of a step, before that divides.

        Args:
            parameters: whose gradients are summed over ranks.
            weight: asks all ranks by what the step divides; they all have kept something, or none has.
        """
        if not self._kept:
            return
        divisor = weight()
        for parameter in parameters:
            kept = self._kept.pop(parameter, None)
            if kept is None:
                continue
            self._layout.local(kept).mul_(divisor)
            if parameter.grad is None:
                parameter.grad = kept
            else:
                parameter.grad.add_(kept)

    def drop(self) -> None:
        """Forgets what was kept."""
        self._kept.clear()
