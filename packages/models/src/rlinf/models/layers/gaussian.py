"""Gaussians, and what squashing by tanh does to their densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)


def gaussian_logprob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, summed over the last axis.

    log p(x) = Σᵢ [ −½ ((xᵢ − μᵢ) / σᵢ)² − log σᵢ − ½ log 2π ]

    Bishop, "Pattern Recognition and Machine Learning" (2006), eq. 2.43 with a diagonal covariance.

    Args:
        x: `[*, N]`.
        mean: `[*, N]`, μ.
        log_std: `[N]` or `[*, N]`, log σ.

    Returns:
        `[*]`, in nats.
    """
    scaled = (x - mean) * (-log_std).exp()
    return -0.5 * scaled.square().sum(-1) - (log_std.sum(-1) + 0.5 * LOG_2PI * log_std.shape[-1])


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of a diagonal Gaussian.

    H = Σᵢ [ log σᵢ + ½ (1 + log 2π) ]

    Bishop, "Pattern Recognition and Machine Learning" (2006), eq. 1.110, summed over independent dimensions.

    Args:
        log_std: `[*, N]`, log σ.

    Returns:
        `[*]`, in nats.
    """
    return log_std.sum(-1) + 0.5 * (1.0 + LOG_2PI) * log_std.shape[-1]


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


def squashed_logprob(latent: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(u), u = μ + σ ε, summed over the last axis: `gaussian_logprob` less `squash_log_slope` in half the steps.

    log p = −Σᵢ [ ½ εᵢ² + log σᵢ − 2 (uᵢ + log(1 + exp(−2 uᵢ))) ] − N (½ log 2π + 2 log 2)

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), app. C, eq. 26, arXiv:1812.05905. As ε is given, the
    mean counts by u alone: what it does to (u − μ) / σ cancels exactly.

    Args:
        latent: `[*, N]`, u; differentiable.
        noise: `[*, N]`, ε, which drew it.
        log_std: `[N]` or `[*, N]`, log σ.

    Returns:
        `[*]`, in nats.
    """
    stretch = latent + torch.nn.functional.softplus(-2.0 * latent)
    costs = torch.addcmul(torch.sub(log_std, stretch, alpha=2.0), noise, noise, value=0.5)
    return -(0.5 * LOG_2PI + 2.0 * LOG_2) * latent.shape[-1] - costs.sum(-1)
