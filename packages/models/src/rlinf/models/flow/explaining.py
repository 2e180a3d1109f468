"""How well a flow explains a chunk that it made: what flow policy gradients have in the place of a log-probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.models.flow.draws import Source, draw_noise
from rlinf.models.flow.field import Field
from rlinf.models.flow.matching import draw_time, interpolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Times and noises at which a flow is asked about a chunk, the same for the weights that made it and for later ones."""

    time: Tensor
    """`[B, N]`, τ."""
    noise: Tensor
    """`[B, N, H, D]`, ε."""
    velocity: Tensor
    """`[B, N, H, D]`, what the weights that made the chunk predicted."""

    @property
    def recorded(self) -> dict[str, Tensor]:
        """What a decision keeps of them in its context."""
        return {"matching_time": self.time, "matching_noise": self.noise, "matching_velocity": self.velocity}

    @staticmethod
    def of(context: Mapping[str, Tensor]) -> Draws:
        """Those of a context, see `recorded`."""
        time, noise, velocity = (context[f"matching_{name}"] for name in ("time", "noise", "velocity"))
        return Draws(time=time, noise=noise, velocity=velocity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What the current weights say of a chunk."""

    prediction: Tensor
    """`[B, N, H, D]`, v(x_τ, τ); differentiable."""
    target: Tensor
    """`[B, N, H, D]`, v* = ε − a."""
    hidden: Tensor
    """`[B, H, W]`, the field's hidden states, averaged over the draws."""

    def logprob(self) -> Tensor:
        """−ℓ of each element, `[B, H, D]`: ℓ = (v − v*)², averaged over the draws.

        McAllister et al., "Flow Matching Policy Gradients" (2025), arXiv:2507.21053: with ℓ averaged over the elements, too, the
        ratio of a decision is exp(ℓ_old − ℓ).
        """
        return -(self.prediction - self.target).square().mean(1)


def draw_matching(chunk: Tensor, count: int, generator: Source) -> tuple[Tensor, Tensor]:
    """N times `[B, N]` and noises `[B, N, H, D]` for chunks `[B, H, D]`."""
    rows, *sizes = chunk.shape
    time = torch.stack([draw_time(rows, chunk, generator) for _ in range(count)], 1)
    return time, draw_noise((rows, count, *sizes), chunk, generator)


def explain(field: Field, chunk: Tensor, time: Tensor, noise: Tensor) -> Explained:
    """Asks the flow, N times.

    Args:
        field: the flow, given what was observed.
        chunk: `[B, H, D]`, a, in the units of the flow.
        time: `[B, N]`.
        noise: `[B, N, H, D]`.
    """
    predictions, targets, hidden = list[Tensor](), list[Tensor](), list[Tensor]()
    for j in range(time.shape[1]):
        x, target = interpolate(chunk, noise[:, j], time[:, j])
        velocity, seen = field(x, time[:, j])
        predictions.append(velocity.to(x))
        targets.append(target)
        hidden.append(seen)
    return Explained(prediction=torch.stack(predictions, 1), target=torch.stack(targets, 1), hidden=torch.stack(hidden).mean(0))
