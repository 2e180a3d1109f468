"""One step of a flow from noise to action, as a Gaussian transition.

With velocity v, x̂₀ = x − τ v is the action that is predicted, and x̂₁ = x + (1 − τ) v the noise; τ′ = τ − δ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.models.flow.sampling import NoiseMethod


def transition(
    x: Tensor, velocity: Tensor, time: Tensor, *, step: float, method: NoiseMethod, noise_level: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the state that follows `x`.

    - flow_ode: μ = x̂₀ (1 − τ′) + x̂₁ τ′ = x − δ v, σ = 0; flow_noise has the same mean, and a network for σ;
    - flow_sde: s = η √(τ / (1 − τ)), with δ for 1 − τ at τ = 1, where σ is then η;
      μ = x̂₀ (1 − τ′) + x̂₁ (τ′ − s² δ / (2 τ)), σ = s √δ;
    - flow_cps: μ = x̂₀ (1 − τ′) + x̂₁ τ′ cos(π η / 2), σ = τ′ sin(π η / 2).

    Only flow_ode and flow_sde end at the data as steps become many. flow_cps keeps the coefficients of a step, not the marginals:
    the noise that is seen in x is in part predicted, and counts as if it were all drawn, so that what it ends with is too narrow.
    Of data of deviation 0.200 it makes 0.183 at η = ½ and 0.139 at η = 1, with 400 steps, and no more with more of them.

    The reverse stochastic equation of Song et al., "Score-Based Generative Modeling through Stochastic Differential Equations"
    (2021), eq. 6, arXiv:2011.13456, with the score −x̂₁ / τ, as in Liu et al., "Flow-GRPO" (2025), eq. 9, arXiv:2505.05470, and Chen
    et al., "πRL" (2025), arXiv:2510.25889; flow_cps: Wang and Yu, "Coefficients-Preserving Sampling for Reinforcement Learning with
    Flow Matching" (2025), arXiv:2509.05952.

    Args:
        x: `[B, H, D]`.
        velocity: `[B, H, D]`, v, which points from action to noise.
        time: `[B]`, τ in (0, 1].
        step: δ.
        method: where the noise comes from.
        noise_level: `[B]`, η.

    Returns:
        μ `[B, H, D]`, differentiable, and σ `[B, 1, 1]`; in float32 at least.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    x, velocity = x.to(kind), velocity.to(kind)
    tau, eta = (t.to(kind)[:, None, None] for t in (time, noise_level))
    # Rounding may leave the last time a little below 0.
    after = (tau - step).clamp(min=0.0)
    action, noise = x - tau * velocity, x + (1.0 - tau) * velocity
    if method in ("flow_ode", "flow_noise"):
        return action * (1.0 - after) + noise * after, torch.zeros_like(tau)
    if method == "flow_cps":
        angle = 0.5 * math.pi * eta
        return action * (1.0 - after) + noise * after * angle.cos(), after * angle.sin()
    if method == "flow_sde":
        # At least half a step, so that no time of the grid divides by 0; at τ = 1 it is δ, also where that is the only step.
        left = torch.where(tau > 1.0 - 0.5 * step, torch.full_like(tau, step), 1.0 - tau)
        spread = eta * (tau / left).sqrt()
        return action * (1.0 - after) + noise * (after - spread.square() * step / (2.0 * tau)), spread * math.sqrt(step)
    raise ConfigError("noise_method", f"expected flow_sde, flow_noise, flow_cps or flow_ode, found '{method}'")
