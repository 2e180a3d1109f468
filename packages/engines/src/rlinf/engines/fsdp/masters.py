"""Weights that are changed in float32 and computed with in less."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.engines.fsdp.config import MixedPrecision
from rlinf.engines.fsdp.rescoring import DTYPES

LESS = (torch.bfloat16, torch.float16)
"""In these a small step is lost: near 1, bfloat16 has no number between 1 and 1.0078."""


class MasterWeights:
    """Makes the trained weights of a policy float32, and knows in which type each is computed with and published.

    Micikevicius et al., "Mixed Precision Training" (2017), §3.1, arXiv:1710.03740.

    Args:
        policy: whose weights these are; `raise_weights` changes it.
        config: in what is computed.
    """

    def __init__(self, policy: nn.Module, config: MixedPrecision) -> None:
        asked = None if config.param_dtype is None else DTYPES[config.param_dtype]
        self._policy = policy
        self.published = {name: tensor.dtype for name, tensor in cast("dict[str, Tensor]", policy.state_dict()).items()}
        """The type of each weight as the policy was built, by name."""
        self._raised = {p for p in policy.parameters() if config.master_weights and p.requires_grad and p.dtype in LESS}
        self._computed = {p: p.dtype if asked is None else asked for p in policy.parameters() if p.is_floating_point()}
        built = sorted({p.dtype for p in self._raised}, key=str)
        self.less: torch.dtype | None = built[0] if asked is None and built else None
        """The type below float32 in which raised weights are computed with because the policy was built so; None if none is."""

    def raise_weights(self, module: nn.Module) -> None:
        """Makes those weights of the policy float32 that are below `module`."""
        for parameter in module.parameters():
            if parameter in self._raised:
                # The parameter itself stays the same one for whoever holds it.
                parameter.data = parameter.data.float()

    def precise(self) -> Iterator[nn.Module]:
        """The outermost modules of which no weight is computed with in `less`; none where all weights have one type."""
        lowered = {parameter for parameter, dtype in self._computed.items() if dtype == self.less}
        return _outermost(self._policy, lowered) if lowered else iter(())

    def release(self) -> None:
        """Forgets the policy's parameters, once others have taken their place."""
        self._raised.clear()
        self._computed.clear()

    @contextmanager
    def lowered(self) -> Generator[None]:
        """Inside, modules compute with copies of their weights in the types that `MasterWeights` knows.

        Gradients go through the copies to the weights. What is computed again on the way back reads weights again, so that the
        backward pass belongs inside, too.
        """
        copies: dict[nn.Parameter, Tensor] = {}
        places: list[tuple[dict[str, Any], str, nn.Parameter]] = []
        for module in self._policy.modules():
            held = cast("dict[str, Any]", module._parameters)  # pyright: ignore[reportPrivateUsage] - as torch.func does
            for name, parameter in held.items():
                if parameter is not None and self._computed.get(parameter, parameter.dtype) != parameter.dtype:
                    places.append((held, name, parameter))
        try:
            for held, name, parameter in places:
                # A weight that several modules share has one copy, in which their gradients meet.
                if parameter not in copies:
                    copies[parameter] = parameter.to(self._computed[parameter])
                held[name] = copies[parameter]
            yield
        finally:
            for held, name, parameter in places:
                held[name] = parameter


def _outermost(module: nn.Module, lowered: set[nn.Parameter]) -> Iterator[nn.Module]:
    for child in module.children():
        own = set(child.parameters())
        if own and not own & lowered:
            yield child
        elif own:
            yield from _outermost(child, lowered)
