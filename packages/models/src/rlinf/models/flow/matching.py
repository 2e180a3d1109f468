"""Flow matching: the regression that makes a flow, and the times at which it is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric
from rlinf.models.flow.draws import Source, draw

_LEAST_TIME = 0.001


def draw_time(rows: int, like: Tensor, generator: Source = None) -> Tensor:
    """Times at which a flow is trained, most of them near the noise.

    τ = 0.999 β + 0.001,   β ~ Beta(1.5, 1), by its inverse distribution function u^(2/3)

    Black et al., "π0: A Vision-Language-Action Flow Model for General Robot Control" (2024), app. B, arXiv:2410.24164, with τ = 1
    at the noise.

    Args:
        rows: B.
        like: whose device and type the result has.
        generator: the source; torch's global one if None.

    Returns:
        `[B]` in [0.001, 1].
    """
    uniform = draw((rows,), torch.rand, like, generator)
    return _LEAST_TIME + (1.0 - _LEAST_TIME) * uniform.pow(2.0 / 3.0)


def interpolate(action: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The state of the straight path at a time, and the velocity along it.

    x_τ = τ ε + (1 − τ) a,   v* = ε − a

    Lipman et al., "Flow Matching for Generative Modeling" (2023), eq. 20–23, arXiv:2210.02747, with τ = 1 at the noise.

    Args:
        action: `[B, H, D]`, a.
        noise: `[B, H, D]`, ε.
        time: `[B]`, τ.

    Returns:
        x_τ and v*, each `[B, H, D]`.
    """
    tau = time[:, None, None]
    return tau * noise + (1.0 - tau) * action, noise - action


def matching_loss(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> LossOutput[Tensor]:
    """The loss of flow matching, as a sum over steps and their number.

    L = Σ mean_D (v − v*)² / number of steps

    Args:
        prediction: `[B, H, D]`, v; differentiable.
        target: `[B, H, D]`, v*.
        mask: `[B, H]` bool, False for steps that count nowhere; all count if None.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    if prediction.shape != target.shape:
        raise ShapeError("matching_loss(target)", f"expected {tuple(prediction.shape)}, found {tuple(target.shape)}")
    error = (prediction.float() - target.float()).square().mean(-1)
    known = torch.ones_like(error, dtype=torch.bool) if mask is None else mask.bool()
    if known.shape != error.shape:
        raise ShapeError("matching_loss(mask)", f"expected {tuple(error.shape)}, found {tuple(known.shape)}")
    total, weight = torch.where(known, error, 0.0).sum(), known.sum().to(error.dtype)
    return LossOutput(total=total, weight=weight, metrics={"sft_loss": Metric(float(total.detach()), float(weight))})
