"""Actor-critics of continuous actions: all that they share, whatever they see."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import Decision, LossOutput, Rescored
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.protocols import Mode
from rlinf.core.trajectory import Batch
from rlinf.core.tree import Tree
from rlinf.models.actor_config import ActorCriticConfig
from rlinf.models.base import BasePolicy
from rlinf.models.heads import CrossQHead, MultiQHead
from rlinf.models.layers.action_distribution import ActionDistribution, Normal
from rlinf.models.precision import at_least_float32

LATENT = "latent"
"""The key of the context that has what was squashed, `[B, K · A]`."""

Context = Mapping[str, Tensor]


class ActorCritic(BasePolicy):
    """π(a|s) and V(s) on features of what was observed.

    A subclass says what it keeps of an observation, what features it makes of that, and what actor and critic say of those.
    """

    distribution: ActionDistribution
    log_std: nn.Parameter | None

    @abstractmethod
    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        """What of an observation is kept to re-score a decision: copies on the policy's device, each `[B, *]`."""

    @abstractmethod
    def _features(self, context: Context) -> Tensor:
        """`[*, W]`, of a context with leaves `[*, …]`."""

    @abstractmethod
    def _output(self, features: Tensor) -> Tensor:
        """What the actor says, `[*, outputs]`."""

    @abstractmethod
    def _value(self, features: Tensor) -> Tensor | None:
        """What the critic says, `[*]`."""

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for a batch of observations; see `BasePolicy`."""
        context = self._context(env_obs)
        return self._decide(context, self._features(context), mode, generator)

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """Log-probability, entropy and value of each decision; no entropy if actions are squashed."""
        context = cast("Context", batch.trajectory.context)
        return self._evaluate(batch, self._features(context))

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """The squared distance of the most likely action from what the expert did; see `rlinf.core.capabilities.HasSFTLoss`.

        L = mean over A of ((a* − a) / r)²,   r half the range of the action, 1 if it has no bounds

        The standard deviation is not learned: reinforcement learning starts with the exploration that was configured.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            action: `[B, K, A]`, what the expert did, in the units of the environment.
            mask: `[B, K]` bool, the steps that count; all if None.
            generator: unused, nothing is drawn.

        Returns:
            The sum over steps that count, and their number. Metrics: `sft_loss`.

        Raises:
            ShapeError: `action` or `mask` has another shape.
        """
        features = self._features(self._context(env_obs))
        mean = self.distribution.action(self._normal(features).mean)
        expert = torch.as_tensor(action, dtype=mean.dtype, device=mean.device)
        if expert.shape != mean.shape:
            raise ShapeError("sft_loss(action)", f"expected {tuple(mean.shape)}, found {tuple(expert.shape)}")
        counts = torch.ones(mean.shape[:2], dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
        if counts.shape != mean.shape[:2]:
            raise ShapeError("sft_loss(mask)", f"expected {tuple(mean.shape[:2])}, found {tuple(counts.shape)}")
        # What follows the end of an episode may be anything, not even numbers.
        expert = torch.where(counts.to(mean.device)[..., None], expert, mean.detach())
        total = ((mean - expert) / self.distribution.radius).square().mean(-1).sum()
        weight = counts.sum().to(total)
        return LossOutput(total=total, weight=weight, metrics={"sft_loss": Metric(total.item(), weight.item())})

    def _decide(self, context: Context, features: Tensor, mode: Mode, generator: torch.Generator | None) -> Decision[Tensor]:
        normal = self._normal(features)
        latent = self.distribution.draw(normal, generator) if mode == "train" else normal.mean
        return Decision(
            action=self.distribution.action(latent),
            logprob=self.distribution.logprob(latent, normal),
            value=self._judged(features),
            context={**context, LATENT: latent} if self.distribution.squash else dict(context),
            version=self.version,
        )

    def _evaluate(self, batch: Batch[Tensor], features: Tensor) -> Rescored[Tensor]:
        normal = self._normal(features)
        if self.distribution.squash:
            # Not from the action: atanh can't undo a tanh that is ±1 in floating point.
            latent = cast("Context", batch.trajectory.context)[LATENT]
        else:
            latent = batch.trajectory.action.flatten(-2)
        logprob = self.distribution.logprob(latent, normal)
        entropy = self.distribution.entropy(normal)
        entropy = None if entropy is None else entropy.expand_as(logprob)
        return Rescored(logprob=logprob, entropy=entropy, value=self._judged(features))

    def _judged(self, features: Tensor) -> Tensor | None:
        value = self._value(features)
        return None if value is None else at_least_float32(value)

    def _normal(self, features: Tensor) -> Normal:
        """The Gaussian in float32 at least: in bfloat16 neither its draws nor their densities would be worth much."""
        log_std = None if self.log_std is None else at_least_float32(self.log_std)
        return self.distribution.normal(at_least_float32(self._output(features)), log_std)


class QFunctions(ActorCritic):
    """What an actor-critic with Q-functions can do beyond others; see `rlinf.core.capabilities.HasQFunctions`."""

    q_head: MultiQHead | CrossQHead

    def sample_action(self, env_obs: Tree[Any], *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A fresh action `[B, K, A]` and the log-probability of the chunk `[B]`, differentiable by reparametrisation.

        No gradient reaches what makes the features: they are learned by the critics alone, as in Yarats et al., "Improving Sample
        Efficiency in Model-Free Reinforcement Learning from Images" (2019), sec. 5, arXiv:1910.01741.
        """
        normal = self._normal(self._features(self._context(env_obs)).detach())
        latent = self.distribution.draw(normal, generator)
        return self.distribution.action(latent), self.distribution.logprob(latent, normal, "chunk_level")

    def q_values(self, env_obs: Tree[Any], action: Any, *, training: bool = False) -> Tensor:
        """`[B, N]`, what each critic says of an action `[B, K, A]` in the units of the environment; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            action: `[B, K, A]`.
            training: whether CrossQ's critics use the statistics of this batch and add them to the running ones; give both ends
                of the transitions at once then. Ordinary critics have no statistics.
        """
        features = self._features(self._context(env_obs))
        unit = self.distribution.unit(torch.as_tensor(action, dtype=features.dtype, device=features.device))
        if isinstance(self.q_head, CrossQHead):
            return self.q_head(features, unit, training=training)
        return self.q_head(features, unit)


def make_q_head(config: ActorCriticConfig, width: int, actions: int) -> MultiQHead | CrossQHead:
    """The Q-functions that a configuration asks for.

    Args:
        config: of the actor-critic.
        width: W, of the features.
        actions: K · A.
    """
    if config.q_head == "crossq":
        return CrossQHead(width, actions, config.num_q_heads, config.q_hidden_sizes)
    return MultiQHead(width, actions, config.num_q_heads, config.q_hidden_sizes, layer_norm=config.q_layer_norm)
