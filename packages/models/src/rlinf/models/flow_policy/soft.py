"""The flow policy with Q-functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlinf.core.data import ArraySpec
from rlinf.core.tree import Tree
from rlinf.models.flow import draw_noise, sample_chain
from rlinf.models.flow_policy.config import FlowPolicyConfig
from rlinf.models.flow_policy.policy import FlowPolicy
from rlinf.models.heads import MultiQHead
from rlinf.models.squashed import squash_log_slope


class SoftFlowPolicy(FlowPolicy):
    """A flow policy for soft actor-critic: every step of the unrolled flow is noisy, and gradients pass through all of them.

    Zhang et al., "SAC Flow: Sample-Efficient Reinforcement Learning of Flow-Based Policies via Velocity-Reparameterized
    Sequential Modeling" (2025), arXiv:2509.25756. Arguments are those of `FlowPolicy`.
    """

    def __init__(self, config: FlowPolicyConfig, *, states: int, action: ArraySpec) -> None:
        super().__init__(config, states=states, action=action)
        steps, size = config.num_action_chunks, self.noise_shape[1]
        self.q_head = MultiQHead(states, steps * size, config.num_q_heads, config.hidden_sizes)

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
        noise = draw_noise((len(seen), *self.noise_shape), seen, generator)
        chain = sample_chain(
            self.field(seen), noise, sampling, noise_level=self.noise_level, train=True, spread=self.noise_net, generator=generator
        )
        return self.executed(chain.action), (chain.score.logprob - self._log_stretch(chain.action)).flatten(1).sum(1)

    def q_values(self, env_obs: Tree[Any], action: Tensor) -> Tensor:
        """`[B, N]`, what each critic says of actions `[B, K, A]` in the units of the environment."""
        seen = self._seen(self._states(env_obs))
        return self.q_head(seen, self.normalize_actions.normalize(action.to(seen)).flatten(1))

    def _log_stretch(self, chunk: Tensor) -> Tensor:
        """Log |da/dx| of each element `[B, H, D]`: of the tanh, and of the units."""
        one, zero = (self.normalize_actions.unnormalize(torch.full_like(chunk, unit)) for unit in (1.0, 0.0))
        scale = one - zero
        if not self.config.squash:
            return scale.log()
        return scale.log() + squash_log_slope(chunk)
