"""The learned temperature of soft actor-critic."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError

Parametrisation = Literal["exp", "softplus", "fixed"]
"""How a free parameter becomes a temperature; a fixed one is no parameter."""


class EntropyTemperature(nn.Module):
    """α = exp(x), α = log(1 + exp(x)), or α = x without a gradient.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), sec. 5, arXiv:1812.05905, where x is learned until
    the policy's entropy is `target_entropy`: minus the number of action dimensions if nobody says otherwise.

    Args:
        actions: of the flattened action: K · A.
        initial: α at the start, positive.
        parametrisation: "exp", "softplus" or "fixed".
        target_entropy: in nats; −K · A if None.

    Raises:
        ConfigError: an argument is out of range.
    """

    raw: Tensor

    def __init__(
        self, actions: int, initial: float = 1.0, parametrisation: Parametrisation = "exp", target_entropy: float | None = None
    ) -> None:
        super().__init__()
        expect_range("EntropyTemperature(initial)", initial, 0.0, open_low=True)
        if parametrisation not in ("exp", "softplus", "fixed"):
            found = f"expected exp, softplus or fixed, found '{parametrisation}'"
            raise ConfigError("EntropyTemperature(parametrisation)", found)
        self.parametrisation: Parametrisation = parametrisation
        self.target_entropy = -float(actions) if target_entropy is None else target_entropy
        if parametrisation == "fixed":
            # A buffer, so that also a fixed temperature is saved, and moves with the module.
            self.register_buffer("raw", torch.tensor(initial))
        else:
            # x = log(exp(α) − 1), written so that neither a large nor a small α is lost.
            inverse = math.log(initial) if parametrisation == "exp" else initial + math.log(-math.expm1(-initial))
            self.raw = nn.Parameter(torch.tensor(inverse))

    def forward(self) -> Tensor:
        """α `[]`, differentiable unless it is fixed."""
        if self.parametrisation == "fixed":
            return self.raw
        return self.raw.exp() if self.parametrisation == "exp" else nn.functional.softplus(self.raw)
