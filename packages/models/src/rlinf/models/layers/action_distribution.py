"""What an actor draws its chunks of actions from, and the Gaussians of those that are vectors of numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from rlinf.core.data import ArraySpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import ActorCriticConfig, finite_bounds
from rlinf.models.flow.draws import draw_noise
from rlinf.models.layers.gaussian import gaussian_entropy, gaussian_logprob, squash_log_slope, squashed_logprob

P = TypeVar("P")
"""The parameters of a distribution, one set for each sample."""

# Actions are divided by their radius and its logarithm is taken, also where both bounds are equal.
_LEAST_RADIUS = 1e-6


@dataclass(frozen=True, slots=True)
class Normal:
    """The parameters of diagonal Gaussians over flattened chunks."""

    mean: Tensor
    """`[*, K · A]`."""
    log_std: Tensor
    """`[K · A]` or `[*, K · A]`."""


class PolicyDistribution(nn.Module, ABC, Generic[P]):
    """What all have in common. A decision is scored by its latent, from which the action follows."""

    squash: bool
    """Whether the latent does not follow from the action, so that it must be kept."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers of `unit`."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers the actor must compute."""

    @abstractmethod
    def free_log_std(self) -> nn.Parameter | None:
        """The logarithms of standard deviations that depend on no state, `[K · A]`; None if there are none."""

    @abstractmethod
    def given(self, output: Tensor, log_std: Tensor | None) -> P:
        """The parameters, of the actor's output `[*, outputs]` and what `free_log_std` gave."""

    @abstractmethod
    def draw(self, given: P, generator: torch.Generator | None) -> Tensor:
        """A latent `[*, K · A]`."""

    def sample(self, given: P, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """A fresh action and the log-probability of the chunk `[*]`, differentiable as far as `draw` is."""
        latent = self.draw(given, generator)
        return self.action(latent), self.logprob(latent, given, "chunk_level")

    @abstractmethod
    def most_likely(self, given: P) -> Tensor:
        """The latent `[*, K · A]` that is most likely."""

    @abstractmethod
    def action(self, latent: Tensor) -> Tensor:
        """`[*, K, A]` in the units of the environment; `[*, K]` if an action is one number without an axis."""

    @abstractmethod
    def latent(self, action: Tensor) -> Tensor:
        """`[*, K · A]`, of an action; where actions are squashed, of one that is a little within the bounds."""

    @abstractmethod
    def unit(self, action: Tensor) -> Tensor:
        """An action as a network should see it, `[*, size]`."""

    @abstractmethod
    def logprob(self, latent: Tensor, given: P, level: Granularity | None = None) -> Tensor:
        """The log-probability of the action that a latent becomes: `[*]`, `[*, K]` or `[*, K, A]`."""

    @abstractmethod
    def entropy(self, given: P) -> Tensor | None:
        """What is broadcast to the shape of the log-probability; None if it has no closed form."""

    @abstractmethod
    def distance(self, given: P, expert: Tensor) -> Tensor:
        """`[*, K]`, how far the policy is from an expert's action `[*, K, A]` at each control step; differentiable."""


class ActionDistribution(PolicyDistribution[Normal]):
    """u ~ N(μ, σ²), a = u; or squashed to the bounds of the actions: a = c + r tanh(u), c ± r the bounds.

    u is called the latent. A squashed decision is scored by its latent, so that nothing is lost where tanh is flat.

    Args:
        config: of the actor.
        action: one control step, `[A]`.
        place: the name of the policy, for messages.

    Raises:
        ConfigError: actions are to be squashed and have no bounds.
    """

    center: Tensor
    radius: Tensor

    def __init__(self, config: ActorCriticConfig, action: ArraySpec, place: str) -> None:
        super().__init__()
        self.chunk = (config.num_action_chunks, action.shape[0])
        self.squash = config.distribution == "tanh_gaussian"
        self.level: Granularity = config.logprob_type
        self.state_dependent = config.state_dependent_std
        self.logstd_range, self.logstd_init = config.logstd_range, config.logstd_init
        bounds = _bounds(action)
        if self.squash and bounds is None:
            remedy = "Choose distribution: gaussian, or an environment with bounds."
            raise ConfigError(f"{place}.distribution", "tanh_gaussian needs finite bounds of the actions; found none", remedy)
        # What only measures distances is no weight; what actions are made of must travel with the weights.
        center, radius = bounds or (torch.zeros(action.shape), torch.ones(action.shape))
        self.register_buffer("center", center, persistent=self.squash)
        self.register_buffer("radius", radius, persistent=self.squash)

    @property
    def size(self) -> int:
        """K · A."""
        return self.chunk[0] * self.chunk[1]

    @property
    def outputs(self) -> int:
        """How many numbers the actor must compute: the means, and the standard deviations if they depend on the state."""
        return 2 * self.size if self.state_dependent else self.size

    def free_log_std(self) -> nn.Parameter | None:
        return None if self.state_dependent else nn.Parameter(torch.full((self.size,), self.logstd_init))

    def given(self, output: Tensor, log_std: Tensor | None) -> Normal:
        """What the actor's output `[*, outputs]` means.

        log σ = lo + (hi − lo) (tanh(y + y₀) + 1) / 2,   y₀ such that an output of 0 means the initial one

        Args:
            output: of the actor.
            log_std: `[K · A]`, what `free_log_std` gave; None if the actor's output has the standard deviations.
        """
        if log_std is not None:
            return Normal(output, log_std)
        mean, free = output.chunk(2, -1)
        low, high = self.logstd_range
        # Finite, for the configuration refuses an initial value at or beyond a bound.
        shift = math.atanh(2.0 * (self.logstd_init - low) / (high - low) - 1.0)
        # As a middle and a half: each number that is added or multiplied takes as long as the whole of a small batch.
        half = 0.5 * (high - low)
        return Normal(mean, (low + half) + half * (free + shift).tanh())

    def draw(self, given: Normal, generator: torch.Generator | None) -> Tensor:
        """A latent `[*, K · A]`, differentiable by its reparametrisation."""
        return torch.addcmul(given.mean, draw_noise(given.mean.shape, given.mean, generator), given.log_std.exp())

    def sample(self, given: Normal, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """A fresh action and the log-probability of the chunk `[*]`, both differentiable by reparametrisation."""
        noise = draw_noise(given.mean.shape, given.mean, generator)
        latent = torch.addcmul(given.mean, noise, given.log_std.exp())
        if not self.squash:
            return self.action(latent), self.logprob(latent, given, "chunk_level")
        stretch = self.radius.log().sum() * self.chunk[0]
        return self.action(latent), squashed_logprob(latent, noise, given.log_std) - stretch

    def most_likely(self, given: Normal) -> Tensor:
        """μ; squashed, it is the median of the actions."""
        return given.mean

    def action(self, latent: Tensor) -> Tensor:
        chunk = latent.reshape(*latent.shape[:-1], *self.chunk)
        return self.center + self.radius * chunk.tanh() if self.squash else chunk

    def latent(self, action: Tensor) -> Tensor:
        """`[*, K · A]`, of an action `[*, K, A]`; undoing tanh, one at a bound is taken for one a little within it."""
        if not self.squash:
            return action.flatten(-2)
        most = 1.0 - _LEAST_RADIUS
        return self.unit(action).clamp(-most, most).atanh()

    def unit(self, action: Tensor) -> Tensor:
        """An action `[*, K, A]` on the scale of its bounds, ±1, flattened to `[*, K · A]`; unchanged if it has none."""
        return ((action - self.center) / self.radius).flatten(-2)

    def logprob(self, latent: Tensor, given: Normal, level: Granularity | None = None) -> Tensor:
        latent, mean, log_std = (self._parts(x, level) for x in (latent, given.mean, given.log_std))
        logprob = gaussian_logprob(latent, mean, log_std)
        if not self.squash:
            return logprob
        stretch = squash_log_slope(latent) + self._parts(self.radius.expand(self.chunk).flatten().log(), level)
        return logprob - stretch.sum(-1)

    def entropy(self, given: Normal) -> Tensor | None:
        return None if self.squash else gaussian_entropy(self._parts(given.log_std, None))

    def distance(self, given: Normal, expert: Tensor) -> Tensor:
        """((a* − a) / r)², the mean over A, `[*, K]`; a is the most likely action, r half the range, 1 if there are no bounds."""
        return ((self.action(given.mean) - expert) / self.radius).square().mean(-1)

    def _parts(self, x: Tensor, level: Granularity | None) -> Tensor:
        """The last axis has what counts as one: `[*, K · A]`, `[*, K, A]` or `[*, K, A, 1]`."""
        level = level or self.level
        if level == "chunk_level":
            return x
        steps = x.reshape(*x.shape[:-1], *self.chunk)
        return steps if level == "action_level" else steps.unsqueeze(-1)


def _bounds(action: ArraySpec) -> tuple[Tensor, Tensor] | None:
    """Middle and half the width of the range of an action, each `[A]`; None if it has no finite bounds."""
    bounds = finite_bounds(action)
    if bounds is None:
        return None
    low, high = map(torch.as_tensor, bounds)
    return 0.5 * (low + high), (0.5 * (high - low)).clamp_min(_LEAST_RADIUS)
