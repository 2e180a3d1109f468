"""The network that says how much of a task is left."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree
from rlinf.models.base import Versioned
from rlinf.models.layers.activations import make_activation
from rlinf.models.reward_models._observed import ObservationFeatures
from rlinf.models.reward_models.losses import return_cross_entropy
from rlinf.models.reward_models.observed import Observed
from rlinf.models.reward_models.returns import ReturnModelConfig
from rlinf.models.small._mlp import perceptron


class ReturnModel(Versioned):
    """V(o) = Σ p_z(o) r_z, with p = softmax(MLP(images, states, words)) over Z returns r from −1 to 0.

    Args:
        config: the hyper-parameters.
        observed: what there is to see.
        seed: decides the weights of the head.
    """

    def __init__(self, config: ReturnModelConfig, observed: Observed, *, seed: int) -> None:
        super().__init__()
        self.config = config
        self.features = ObservationFeatures(config, observed, by="recap_value_model")
        activation, generator = partial(make_activation, config.activation), torch.Generator().manual_seed(seed)
        # A small gain: at first every return is about as likely as any other.
        sizes = (self.features.width, *config.hidden_sizes, config.bins)
        self.head = perceptron(sizes, activation, last_gain=0.01, generator=generator)

    @property
    def returns(self) -> Tensor:
        """r, `[Z]`, ascending."""
        return torch.linspace(-1.0, 0.0, self.config.bins, device=next(self.parameters()).device)

    def logits(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, Z]`, float32 at least; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.

        Raises:
            ShapeError: something that it sees is not there, or has another shape.
        """
        out = cast("Tensor", self.head(self.features(env_obs, next(self.head.parameters()))))
        return out.to(torch.promote_types(out.dtype, torch.float32))

    @torch.no_grad()
    def state_values(self, env_obs: Tree[Any]) -> Tensor:
        """`[B]` in [−1, 0], the expected return; see `rlinf.core.rewards.LearnsReturns`."""
        return (self.logits(env_obs).softmax(-1) * self.returns).sum(-1)

    def return_loss(self, env_obs: Tree[Any], returns: Tensor, *, mask: Tensor | None = None) -> LossOutput[Tensor]:
        """How surprising the returns `[B]` of recorded steps are; see `return_cross_entropy`."""
        logit = self.logits(env_obs)
        return return_cross_entropy(logit, returns.to(logit), mask=mask)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        del action  # nobody shows it one
        self.features.fit_statistics(states)
