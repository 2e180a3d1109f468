"""The flow policy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.capabilities import FlowRegression
from rlinf.core.data import ArraySpec, Batch, Decision, LossOutput, Rescored
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import finite_bounds
from rlinf.models.base import BasePolicy, flat_context
from rlinf.models.flow import (
    Chain,
    FlowSampler,
    draw_noise,
    draw_time,
    interpolate,
    matching_loss,
)
from rlinf.models.flow.conditioning import GOOD, UNCONDITIONAL, classifier_free, one_hot_labels, training_labels
from rlinf.models.flow.field import Field
from rlinf.models.flow.noise import noise_net
from rlinf.models.flow_policy.policy import STATES, FlowPolicyConfig
from rlinf.models.flow_policy.velocity import VelocityNet
from rlinf.models.heads import MultiQHead, ValueHead
from rlinf.models.layers.gaussian import squash_log_slope
from rlinf.models.normalization import Normalizer
from rlinf.models.observations.reading import read_states

# atanh(±1) is infinite; this keeps the flow's targets within ±4.95.
_INSIDE = 1.0 - 1e-4
_LABELS = 2
"""Numbers beside the states by which a conditioned flow is told; see `one_hot_labels`."""


class FlowPolicy(BasePolicy):
    """A chunk is made of noise by K steps along v(x, τ, s); with `squash`, a tanh follows.

    Log-probabilities are those of the chain. What comes after it, the tanh and the units of the environment, has no part in them:
    its Jacobian is the same under all weights.

    Args:
        config: the hyper-parameters.
        states: S, the size of a state.
        action: one control step; its bounds, where finite, become ±1 for the flow.
    """

    def __init__(self, config: FlowPolicyConfig, *, states: int, action: ArraySpec) -> None:
        super().__init__()
        self.config = config
        size = action.shape[0]
        horizon = config.horizon or config.num_action_chunks
        self.noise_shape = (horizon, size)
        self.normalize_states = Normalizer(states, "mean_std")
        self.normalize_actions = Normalizer(size, "min_max")
        if (bounds := finite_bounds(action)) is not None:
            self.normalize_actions.set_statistics({"min": bounds[0], "max": bounds[1]})
        hidden, activation = config.hidden_sizes, config.activation
        shown = states + (0 if config.condition is None else _LABELS)
        self.velocity = VelocityNet(shown, horizon, size, hidden, config.token_width, activation)
        self.noise_net = noise_net(config.sampling, config.token_width, size)
        self.sampler = FlowSampler(
            sampling=config.sampling,
            noise_shape=self.noise_shape,
            executed=(config.num_action_chunks, size),
            granularity=config.logprob_type,
            spread=self.noise_net,
            level=config.sampling.level(0),
        )
        self.value_head: ValueHead | None = ValueHead(states, hidden, activation) if config.add_value_head else None

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for observations `{"states": [B, S]}`; see `BasePolicy`."""
        states = self._states(env_obs)
        seen = self._seen(states)
        chain = self.sampler.sample(self.field(seen), seen, train=mode == "train", generator=generator)
        return self._decision(states, chain)

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        context = flat_context(batch, self.velocity.out.weight.device)
        seen = self._seen(self._states(context))
        score = self.sampler.score(self.field(seen), context)
        value = None if self.value_head is None else self.value_head(seen)
        return self.sampler.rescored(score, value, batch.trajectory.reward.shape)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        self.normalize_actions.fit(action)
        self.normalize_states.fit(states)

    def sft_loss(
        self, env_obs: Tree[Any], action: Tensor, *, mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """The loss of flow matching; see `rlinf.core.capabilities.HasSFTLoss`."""
        seen, steps = self._seen(self._states(env_obs)), action.shape[1]
        missing = self.noise_shape[0] - steps
        if missing < 0:
            raise ShapeError("flow_policy(action)", f"expected at most {self.noise_shape[0]} steps, found {steps}")
        # The network wants whole chunks; the loss leaves the padded steps out.
        chunk = torch.nn.functional.pad(self._inner(action.to(seen)), (0, 0, 0, missing))
        time = draw_time(len(chunk), chunk, generator)
        x, target = interpolate(chunk, draw_noise(chunk.shape, chunk, generator), time)
        prediction, _ = self.velocity(x, time, self._shown(seen, env_obs, generator))
        return matching_loss(prediction[:, :steps], target[:, :steps], mask)

    def flow_regression(self, context: Tree[Any]) -> FlowRegression:
        return self.sampler.regress(self.field(self._seen(self._states(context))), cast("Mapping[str, Tensor]", context))

    def steer(self, env_obs: Tree[Any], noise: Tensor) -> Tensor:
        """The action `[B, K, A]` that noise `[B, H, D]` becomes by the ODE; see `rlinf.core.capabilities.HasNoiseSteering`."""
        seen = self._seen(self._states(env_obs))
        return self.executed(self.sampler.follow(self.field(seen), noise).action)

    @torch.no_grad()
    def continue_chunk(
        self, env_obs: Tree[Any], previous: Tensor, *, delay: int, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """A chunk, by the guided ODE, that goes on from the previous one; see `rlinf.core.capabilities.RealTimeChunkingPolicy`."""
        states = self._states(env_obs)
        seen, horizon = self._seen(states), self.noise_shape[0]
        rest = self._inner(previous.to(seen))[:, :horizon]
        known = rest.shape[1]
        padded = torch.nn.functional.pad(rest, (0, 0, 0, horizon - known))
        chain = self.sampler.go_on(self.field(seen), padded, known=known, delay=delay, generator=generator)
        return self._decision(states, chain)

    def set_global_step(self, step: int) -> None:
        self.sampler.level = self.config.sampling.level(step)

    def field(self, seen: Tensor) -> Field:
        """The flow, given normalised states `[B, S]`; a conditioned one is told that what it does is good."""
        condition = self.config.condition
        if condition is None:
            return functools.partial(self.velocity, states=seen)
        labels = (torch.full((len(seen),), label, device=seen.device) for label in (GOOD, UNCONDITIONAL))
        good, free = (functools.partial(self.velocity, states=_told(seen, each)) for each in labels)
        return classifier_free(good, free, condition.guidance_scale)

    def executed(self, chunk: Tensor) -> Tensor:
        """From what a chain ends with, `[B, H, D]`, to actions `[B, K, A]` in the units of the environment."""
        steps = chunk[:, : self.config.num_action_chunks]
        return self.normalize_actions.unnormalize(steps.tanh() if self.config.squash else steps)

    def _shown(self, seen: Tensor, env_obs: Tree[Any], generator: torch.Generator | None) -> Tensor:
        """What the network is given of demonstrations: states, and whether the actions were good, unless that is dropped."""
        condition = self.config.condition
        if condition is None:
            return seen
        return _told(seen, training_labels(condition, env_obs, seen, generator))

    def _decision(self, states: Tensor, chain: Chain) -> Decision[Tensor]:
        return Decision(
            action=self.executed(chain.action),
            logprob=self.sampler.of_decision(chain.score.logprob),
            value=None if self.value_head is None else self.value_head(self._seen(states)),
            context={STATES: states} | chain.recorded,
            version=self.version,
        )

    def _inner(self, action: Tensor) -> Tensor:
        """From the units of the environment to those of the flow, `[B, *, A]`."""
        unit = self.normalize_actions.normalize(action)
        return unit.clamp(-_INSIDE, _INSIDE).atanh() if self.config.squash else unit

    def _seen(self, states: Tensor) -> Tensor:
        return self.normalize_states.normalize(states)

    def _states(self, tree: Tree[Any]) -> Tensor:
        return read_states(tree, self.normalize_states.first.shape[0], "flow_policy", self.velocity.out.weight)


def _told(seen: Tensor, labels: Tensor) -> Tensor:
    """States, and what each row is told, `[B, S + 2]`."""
    return torch.cat([seen, one_hot_labels(labels).to(seen)], -1)


class SoftFlowPolicy(FlowPolicy):
    """A flow policy for soft actor-critic: every step of the unrolled flow is noisy, and gradients pass through all of them.

    Zhang et al., "SAC Flow: Sample-Efficient Reinforcement Learning of Flow-Based Policies via Velocity-Reparameterized
    Sequential Modeling" (2025), arXiv:2509.25756. Arguments are those of `FlowPolicy`.
    """

    def __init__(self, config: FlowPolicyConfig, *, states: int, action: ArraySpec) -> None:
        super().__init__(config, states=states, action=action)
        steps, size = config.num_action_chunks, self.noise_shape[1]
        self.q_head = MultiQHead(states, steps * size, config.num_q_heads, config.hidden_sizes, layer_norm=config.q_layer_norm)

    def actor_parameters(self) -> list[str]:
        return [name for name, _ in self.named_parameters() if name.partition(".")[0] in ("velocity", "noise_net")]

    def most_likely_action(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, K, A]`, where the ODE takes the centre of the noise; differentiable."""
        seen = self._seen(self._states(env_obs))
        return self.steer(env_obs, seen.new_zeros((len(seen), *self.noise_shape)))

    def sample_action(self, env_obs: Tree[Any], *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A fresh action and the log-probability of the chain that made it, both differentiable.

        log π = log N(x₀; 0, I) + Σ_k log N(x_{k+1}; μ_k, σ_k²) − Σ log |da/dx_K|

        Nothing is detached: the entropy's gradient reaches the flow through σ and through the last term.

        Args:
            env_obs: observations by key.
            generator: the source of all randomness.

        Returns:
            `[B, K, A]` in the units of the environment, and `[B]`.
        """
        seen = self._seen(self._states(env_obs))
        sampling = replace(self.config.sampling, joint_logprob=True, joint_reduction="sum")
        chain = replace(self.sampler, sampling=sampling).sample(self.field(seen), seen, train=True, generator=generator)
        return self.executed(chain.action), (chain.score.logprob - self._log_stretch(chain.action)).flatten(1).sum(1)

    def q_values(self, env_obs: Tree[Any], action: Tensor) -> Tensor:
        """`[B, N]`, what each critic says of actions `[B, K, A]` in the units of the environment."""
        seen = self._seen(self._states(env_obs))
        # Critics see actions on the scale of their bounds, without the inverse of the tanh.
        return self.q_head(seen, self.normalize_actions.normalize(action.to(seen)).flatten(1))

    def _log_stretch(self, chunk: Tensor) -> Tensor:
        """Log |da/dx| of each element `[B, H, D]`: of the tanh, and of the units."""
        # The units are affine, so the difference of two points is the slope.
        one, zero = (self.normalize_actions.unnormalize(torch.full_like(chunk, unit)) for unit in (1.0, 0.0))
        scale = one - zero
        # A number of the action that can be but one has no density; it says nothing of the others.
        scale = torch.where(scale == 0.0, 1.0, scale)
        if not self.config.squash:
            return scale.log()
        return scale.log() + squash_log_slope(chunk)
