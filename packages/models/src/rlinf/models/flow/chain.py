"""Sampling a chain of denoising steps, and scoring a recorded one: the same arithmetic, so that both agree.

noise x₀ ──▶ x₁ ──▶ … ──▶ x_K = action        τ = 1, 1 − δ, …, 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.models.flow.draws import draw_index, draw_noise
from rlinf.models.flow.explaining import Draws
from rlinf.models.flow.field import Field
from rlinf.models.flow.kernel import transition
from rlinf.models.flow.sampling import FlowSampling
from rlinf.models.layers.gaussian import LOG_2PI

Spread = Callable[[Tensor], Tensor]
"""From hidden states `[B, H, W]`: σ `[B, H, D]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScore:
    """What the current weights say of a recorded chain."""

    logprob: Tensor
    """`[B, H, D]`, of each element: of the one scored step, or reduced over all and the initial noise; 0 where σ is."""
    entropy: Tensor
    """`[B, H, D]`, of the scored steps' Gaussians, reduced likewise; 0 where σ is."""
    hidden: Tensor
    """`[B, H, W]`, the field's hidden states, averaged over the scored steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A sampled chain."""

    states: Tensor
    """`[B, K + 1, H, D]`, from the noise to the action."""
    index: Tensor
    """`[B]` int, the scored step; with `joint_logprob` all are, and it is 0."""
    level: Tensor
    """`[B]`, η; 0 where no step was stochastic, as in mode "eval"."""
    score: ChainScore
    draws: Draws | None = None
    """Where the flow is asked how well it explains the action; None where the chain itself is scored."""

    @property
    def recorded(self) -> dict[str, Tensor]:
        """What a decision keeps of it in its context, to be scored again."""
        if self.draws is not None:
            return {"made": self.action, **self.draws.recorded}
        return {"chains": self.states, "denoise_inds": self.index, "noise_level": self.level}

    @property
    def action(self) -> Tensor:
        """`[B, H, D]`, what the chain ends with."""
        return self.states[:, -1]


def sample_chain(
    field: Field,
    noise: Tensor,
    sampling: FlowSampling,
    *,
    noise_level: float,
    train: bool,
    spread: Spread | None = None,
    generator: torch.Generator | None = None,
) -> Chain:
    """Denoises.

    Args:
        field: the flow.
        noise: `[B, H, D]`, from N(0, I).
        sampling: the hyper-parameters.
        noise_level: η > 0; see `FlowSampling.level`.
        train: whether any step is stochastic; if not, the log-probability is 0.
        spread: the noise network of flow_noise.
        generator: the source of all randomness; numbers are drawn on its device.
    """
    rows, steps = len(noise), sampling.num_steps
    # In bfloat16 the states of a chain would lose their last digits.
    x = noise.to(torch.promote_types(noise.dtype, torch.float32))
    index = torch.zeros(rows, dtype=torch.int64, device=x.device)
    if train and not sampling.joint_logprob:
        index = draw_index(rows, sampling.random_steps, x, generator)
    level = torch.full((rows,), noise_level if train else 0.0, dtype=x.dtype, device=x.device)
    total = _Total.start(x, level, sampling)
    states, times = [x], _times(level, steps)
    for k in range(steps):
        scored = torch.ones_like(index, dtype=torch.bool) if sampling.joint_logprob else index == k
        time = times[k].expand(rows)
        velocity, hidden = field(x, time)
        mean, std = _gaussian(x, velocity, hidden, time, level * scored, sampling, spread)
        x = mean
        if train:
            # Every row draws, also where σ is 0: how many numbers are drawn never depends on the index.
            x = torch.addcmul(mean, std, draw_noise(mean.shape, mean, generator))
        states.append(x)
        total.add(scored, x, mean, std, hidden)
    return Chain(states=torch.stack(states, 1), index=index, level=level, score=total.score())


def score_chain(
    field: Field, states: Tensor, index: Tensor, level: Tensor, sampling: FlowSampling, *, spread: Spread | None = None
) -> ChainScore:
    """Scores a recorded chain; the field is asked once, or K times with `joint_logprob`.

    Args:
        field: the flow under the current weights.
        states: `[B, K + 1, H, D]`, of `Chain`.
        index: `[B]`, of `Chain`.
        level: `[B]`, of `Chain`.
        sampling: the hyper-parameters that the chain was sampled with.
        spread: the noise network of flow_noise.
    """
    rows, times = torch.arange(len(states), device=states.device), _times(level, sampling.num_steps)
    total = _Total.start(states[:, 0], level, sampling)
    every = torch.ones_like(index, dtype=torch.bool)
    for at in [torch.full_like(index, k) for k in range(sampling.num_steps)] if sampling.joint_logprob else [index]:
        x, time = states[rows, at], times[at]
        velocity, hidden = field(x, time)
        mean, std = _gaussian(x, velocity, hidden, time, level, sampling, spread)
        total.add(every, states[rows, at + 1], mean, std, hidden)
    return total.score()


def _times(like: Tensor, steps: int) -> Tensor:
    """τ of each step `[K]`, one table for sampling and scoring: computed in two ways it would differ in its last digit."""
    return like.new_tensor([1.0 - k / steps for k in range(steps)])


def _gaussian(
    x: Tensor, velocity: Tensor, hidden: Tensor, time: Tensor, level: Tensor, sampling: FlowSampling, spread: Spread | None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation `[B, H, D]` of what follows x; the ODE and 0 where the level is 0."""
    step = 1.0 / sampling.num_steps
    noisy = (level > 0)[:, None, None]
    mean, std = transition(x, velocity, time, step=step, method=sampling.noise_method, noise_level=level)
    if sampling.noise_method == "flow_noise":
        if spread is None:
            raise ConfigError("noise_method", "flow_noise needs a noise network", "Build the policy with it.")
        std = spread(hidden)
    return mean, (std * noisy).expand_as(mean)


@dataclass(slots=True, kw_only=True)
class _Total:
    """Adds up what scored steps say."""

    logprob: Tensor
    entropy: Tensor
    sampling: FlowSampling
    hidden: Tensor | None = None

    @staticmethod
    def start(noise: Tensor, level: Tensor, sampling: FlowSampling) -> _Total:
        """With the log-probability of the initial noise if steps are scored jointly, else with nothing."""
        zero = torch.zeros_like(noise)
        initial = -0.5 * (noise.square() + LOG_2PI) * (level > 0)[:, None, None]
        return _Total(logprob=initial if sampling.joint_logprob else zero, entropy=zero, sampling=sampling)

    def add(self, scored: Tensor, after: Tensor, mean: Tensor, std: Tensor, hidden: Tensor) -> None:
        """A step; rows that are not `scored` add nothing."""
        here = scored[:, None, None]
        random = (std > 0) & here
        # 1 where σ is 0: `where` hides log 0 from the result, but its gradient would still be NaN.
        log_std = torch.where(random, std, 1.0).log()
        z = torch.where(random, (after - mean) * (-log_std).exp(), 0.0)
        self.logprob = self.logprob + torch.where(random, -0.5 * (z.square() + LOG_2PI) - log_std, 0.0)
        self.entropy = self.entropy + torch.where(random, log_std + 0.5 * (1.0 + LOG_2PI), 0.0)
        seen = torch.where(here, hidden, 0.0)
        self.hidden = seen if self.hidden is None else self.hidden + seen

    def score(self) -> ChainScore:
        assert self.hidden is not None
        if not self.sampling.joint_logprob:
            return ChainScore(logprob=self.logprob, entropy=self.entropy, hidden=self.hidden)
        steps, mean = self.sampling.num_steps, self.sampling.joint_reduction == "mean"
        # K steps and the initial noise.
        terms = steps + 1 if mean else 1
        return ChainScore(logprob=self.logprob / terms, entropy=self.entropy / terms, hidden=self.hidden / steps)
