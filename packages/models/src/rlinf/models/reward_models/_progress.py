"""The networks that say how far a task got between two states."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree
from rlinf.models.base import Versioned
from rlinf.models.layers.activations import make_activation
from rlinf.models.reward_models._observed import ObservationFeatures
from rlinf.models.reward_models.losses import offset_cross_entropy
from rlinf.models.reward_models.observed import Observed
from rlinf.models.reward_models.progress import ProgressModelConfig
from rlinf.models.small._mlp import perceptron


class ProgressCritic(nn.Module):
    """p(o, o′) = softmax(MLP(f(o), f(o′))) over Z offsets from −1 to 1, where f sees images, states and words.

    Args:
        config: the hyper-parameters.
        observed: what there is to see.
        generator: draws the weights of the head.
    """

    def __init__(self, config: ProgressModelConfig, observed: Observed, *, generator: torch.Generator) -> None:
        super().__init__()
        self.features = ObservationFeatures(config, observed, by="steam_value_model")
        sizes = (2 * self.features.width, *config.hidden_sizes, config.bins)
        # A small gain: at first every offset is about as likely as any other.
        self.head = perceptron(sizes, partial(make_activation, config.activation), last_gain=0.01, generator=generator)

    def forward(self, env_obs: Tree[Any], later_obs: Tree[Any]) -> Tensor:
        """The logits of offsets, `[B, Z]`, float32 at least; differentiable."""
        like = next(self.head.parameters())
        out = cast("Tensor", self.head(torch.cat([self.features(seen, like) for seen in (env_obs, later_obs)], -1)))
        return out.to(torch.promote_types(out.dtype, torch.float32))


class ProgressModel(Versioned):
    """N critics, which share no weights: see `rlinf.core.rewards.LearnsOffsets`.

    All of them learn from the same pairs. They differ by the weights they begin with, as in Lakshminarayanan et al., "Simple and
    Scalable Predictive Uncertainty Estimation using Deep Ensembles" (2017), sec. 2.4, arXiv:1612.01474.

    Args:
        config: the hyper-parameters.
        observed: what there is to see.
        seed: decides the weights of the heads.
    """

    def __init__(self, config: ProgressModelConfig, observed: Observed, *, seed: int) -> None:
        super().__init__()
        self.config, generator = config, torch.Generator().manual_seed(seed)
        self.critics = nn.ModuleList(ProgressCritic(config, observed, generator=generator) for _ in range(config.ensemble))

    def logits(self, env_obs: Tree[Any], later_obs: Tree[Any]) -> Tensor:
        """Those of each critic, `[N, B, Z]`; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            later_obs: those of the states that they are compared with.

        Raises:
            ShapeError: something that they see is not there, or has another shape.
        """
        return torch.stack([critic(env_obs, later_obs) for critic in self.critics])

    @torch.no_grad()
    def expected_offsets(self, env_obs: Tree[Any], later_obs: Tree[Any]) -> Tensor:
        """`[N, B]` in [−1, 1], Σ p_z d_z of each critic, where d are the offsets."""
        logit = self.logits(env_obs, later_obs)
        return logit.softmax(-1) @ torch.linspace(-1.0, 1.0, self.config.bins).to(logit)

    def offset_loss(
        self, env_obs: Tree[Any], later_obs: Tree[Any], offsets: Tensor, *, mask: Tensor | None = None
    ) -> LossOutput[Tensor]:
        """How surprising the offsets `[B]` of recorded pairs are, as the mean over critics; see `offset_cross_entropy`."""
        logit, count = self.logits(env_obs, later_obs), self.config.ensemble
        masks = None if mask is None else mask.repeat(count)
        found = offset_cross_entropy(logit.flatten(0, 1), offsets.to(logit).repeat(count), mask=masks)
        # The gradient of each critic is its own over N, whatever the others say.
        return replace(found, total=found.total / count, weight=found.weight / count)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        del action  # nobody shows them one
        for critic in self.critics:
            cast("ProgressCritic", critic).features.fit_statistics(states)
