"""The diagonal Gaussian: its log-probability and its entropy."""

from __future__ import annotations

import math

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
