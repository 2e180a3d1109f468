"""The tanh-squashed Gaussian: how much the squashing changes a density."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_2 = math.log(2.0)


def squash_log_slope(latent: Tensor) -> Tensor:
    """How much tanh stretches, as a logarithm; exact also where tanh is ±1 in floating point.

    log d tanh(u)/du = log(1 − tanh² u) = 2 (log 2 − u − log(1 + exp(−2 u)))

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), app. C, eq. 26, arXiv:1812.05905, whose 1 − tanh²
    is rewritten so that nothing cancels. The log-probability of a = tanh(u) is that of u less the sum of this.

    Args:
        latent: any shape, u.

    Returns:
        The same shape, at most 0.
    """
    return 2.0 * (LOG_2 - latent - torch.nn.functional.softplus(-2.0 * latent))
