"""Real-time chunking: a new chunk that agrees with the one in execution where that can't be changed any more.

step               0 … d − 1            d … n − 1                   n … H − 1
previous chunk     executed meanwhile   planned: may be changed     says nothing
weight             1                    falls towards 0             0
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.flow.field import Field


def prefix_weights(horizon: int, *, delay: int, known: int) -> Tensor:
    """How much each step of the new chunk must agree with the previous one.

    W_i = 1 for i < d;   c_i (exp(c_i) − 1) / (e − 1) with c_i = (n − i) / (n − d + 1) for d ≤ i < n;   0 from n on

    Black, Galliker and Levine, "Real-Time Execution of Action Chunking Flow Policies" (2025), eq. 5, arXiv:2506.07339.

    Args:
        horizon: H, steps of the new chunk.
        delay: d, steps of the previous chunk that will have been executed when the new one is there.
        known: n ≥ d, steps of the previous chunk that there are.

    Returns:
        `[H]` in [0, 1].

    Raises:
        ConfigError: not 0 ≤ delay ≤ known ≤ horizon.
    """
    if not 0 <= delay <= known <= horizon:
        raise ConfigError("prefix_weights", f"expected 0 ≤ delay ≤ known ≤ horizon, found {delay}, {known} and {horizon}")
    step = torch.arange(horizon, dtype=torch.float32)
    share = (known - step) / (known - delay + 1)
    soft = share * (share.exp() - 1.0) / (math.e - 1.0)
    return torch.where(step < delay, 1.0, torch.where(step < known, soft, 0.0))


def guided(field: Field, previous: Tensor, weight: Tensor, *, clip: float = 5.0) -> Field:
    """A field that leads to chunks like the previous one where the weight says so.

    v_Π = v − min(β, r⁻² τ / (1 − τ)) · (∂x̂₀/∂x)ᵀ W (Y − x̂₀),   x̂₀ = x − τ v,   r² = τ² / (τ² + (1 − τ)²)

    Pseudo-inverse guidance of Song et al., "Pseudoinverse-Guided Diffusion Models for Inverse Problems" (2023), as Black et al.,
    "Real-Time Execution of Action Chunking Flow Policies" (2025), eq. 2–4, arXiv:2506.07339, use it, there with τ = 1 at the
    action: hence the other sign of v and τ in the place of 1 − τ. At the noise the factor is β.

    Each evaluation costs a backward pass through the field; what the field's closure holds gets no gradient.

    Args:
        field: the flow, differentiable in its first argument.
        previous: `[B, H, D]`, Y, in the units of the flow; anything where the weight is 0.
        weight: `[H]` or `[B, H]`, W in [0, 1].
        clip: β > 0, the greatest factor.

    Raises:
        ConfigError: β is not above 0.
        ShapeError: the weight fits no chunk; raised when the field is asked.
    """
    expect_range("guided(clip)", clip, 0.0, open_low=True)
    rows = weight.to(previous)[..., None]

    def velocity(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        if previous.shape != x.shape or rows.shape[-2] != x.shape[1]:
            found = f"{tuple(previous.shape)} and weight {tuple(weight.shape)}"
            raise ShapeError("guided(previous)", f"expected {tuple(x.shape)} and a weight for each step, found {found}")
        tau = time[:, None, None].to(x.dtype)
        # Policies decide under no_grad, and the guidance needs the field's gradient all the same.
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            v, hidden = field(at, time)
            action = at - tau * v
            # No product alone: `previous` may be NaN where the weight is 0, and 0 · NaN is NaN.
            error = torch.where(rows > 0, rows * (previous - action.detach()), 0.0)
            (pull,) = torch.autograd.grad(action, at, grad_outputs=error.to(action.dtype))
        # r⁻² τ / (1 − τ) without a division by 0: it grows towards the noise, where the clip holds.
        factor = (tau.square() + (1.0 - tau).square()) / (tau * (1.0 - tau)).clamp(min=1e-6)
        return v.detach() - factor.clamp(max=clip) * pull, hidden.detach()

    return velocity
