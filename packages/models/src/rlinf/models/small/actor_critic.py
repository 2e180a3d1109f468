"""Actor-critics: all that they share, whatever they see."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import Batch, Decision, LossOutput, Rescored
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.protocols import Mode
from rlinf.models.actor_config import ActorCriticConfig
from rlinf.models.base import BasePolicy
from rlinf.models.heads import CrossQHead, MultiQHead
from rlinf.models.layers.action_distribution import PolicyDistribution
from rlinf.models.precision import at_least_float32

LATENT = "latent"
"""The key of the context that has what was squashed, `[B, K · A]`."""

Context = Mapping[str, Tensor]


class ActorCritic(BasePolicy):
    """π(a|s) and V(s) on features of what was observed.

    A subclass says what it keeps of an observation, what features it makes of that, and what actor and critic say of those.
    """

    distribution: PolicyDistribution[Any]
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
        """How far the policy is from what the expert did; see `rlinf.core.capabilities.HasSFTLoss`.

        L = mean over A of ((a* − a) / r)²,   a the most likely action, r half the range of the action, 1 if it has no bounds
        L = mean over A of −log P(a*)         of numbered actions

        A standard deviation is not learned: reinforcement learning starts with the exploration that was configured.

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
        given = self._given(self._features(self._context(env_obs)))
        own = self.distribution.action(self.distribution.most_likely(given))
        expert = torch.as_tensor(action, dtype=own.dtype, device=own.device)
        if expert.shape != own.shape:
            raise ShapeError("sft_loss(action)", f"expected {tuple(own.shape)}, found {tuple(expert.shape)}")
        counts = torch.ones(own.shape[:2], dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
        if counts.shape != own.shape[:2]:
            raise ShapeError("sft_loss(mask)", f"expected {tuple(own.shape[:2])}, found {tuple(counts.shape)}")
        counts = counts.to(own.device)
        # What follows the end of an episode may be anything, not even numbers.
        expert = torch.where(counts.reshape(counts.shape + (1,) * (own.ndim - 2)), expert, own.detach())
        distance = self.distribution.distance(given, expert)
        total = torch.where(counts, distance, torch.zeros_like(distance)).sum()
        weight = counts.sum().to(total)
        return LossOutput(total=total, weight=weight, metrics={"sft_loss": Metric(total.item(), weight.item())})

    def _decide(self, context: Context, features: Tensor, mode: Mode, generator: torch.Generator | None) -> Decision[Tensor]:
        given, of = self._given(features), self.distribution
        latent = of.draw(given, generator) if mode == "train" else of.most_likely(given)
        return Decision(
            action=of.action(latent),
            logprob=of.logprob(latent, given),
            value=self._judged(features),
            context={**context, LATENT: latent} if of.squash else dict(context),
            version=self.version,
        )

    def _evaluate(self, batch: Batch[Tensor], features: Tensor) -> Rescored[Tensor]:
        given = self._given(features)
        if self.distribution.squash:
            # Not from the action: atanh can't undo a tanh that is ±1 in floating point.
            latent = cast("Context", batch.trajectory.context)[LATENT]
        else:
            latent = self.distribution.latent(batch.trajectory.action)
        logprob = self.distribution.logprob(latent, given)
        entropy = self.distribution.entropy(given)
        entropy = None if entropy is None else entropy.expand_as(logprob)
        return Rescored(logprob=logprob, entropy=entropy, value=self._judged(features))

    def _judged(self, features: Tensor) -> Tensor | None:
        value = self._value(features)
        return None if value is None else at_least_float32(value)

    def _given(self, features: Tensor) -> Any:
        """The distribution's parameters in float32 at least: in bfloat16 neither draws nor densities would be worth much."""
        log_std = None if self.log_std is None else at_least_float32(self.log_std)
        return self.distribution.given(at_least_float32(self._output(features)), log_std)


class QFunctions(ActorCritic):
    """What an actor-critic with Q-functions can do beyond others; see `rlinf.core.off_policy.HasQFunctions`."""

    q_head: MultiQHead | CrossQHead

    def actor_parameters(self) -> list[str]:
        return [name for name, _ in self.named_parameters() if name.partition(".")[0] in ("actor", "log_std")]

    def most_likely_action(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, K, A]`, the action without noise; as with `sample_action` no gradient reaches what makes the features."""
        given = self._given(self._features(self._context(env_obs)).detach())
        return self.distribution.action(self.distribution.most_likely(given))

    def sample_action(self, env_obs: Tree[Any], *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A fresh action `[B, K, A]` and the log-probability of the chunk `[B]`, differentiable by reparametrisation.

        No gradient reaches what makes the features: they are learned by the critics alone, as in Yarats et al., "Improving Sample
        Efficiency in Model-Free Reinforcement Learning from Images" (2019), sec. 5, arXiv:1910.01741.
        """
        given = self._given(self._features(self._context(env_obs)).detach())
        return self.distribution.sample(given, generator)

    def value_parameters(self) -> list[str]:
        return [name for name, _ in self.named_parameters() if name.partition(".")[0] in ("critic", "value_head")]

    def state_value(self, env_obs: Tree[Any]) -> Tensor:
        """`[B]`, what a state is worth; no gradient reaches what makes the features, which the Q-functions learn.

        Raises:
            ConfigError: there is no value function.
        """
        value = self._judged(self._features(self._context(env_obs)).detach())
        if value is None:
            raise ConfigError("actor.model.add_value_head", "there is no value function, found false", "Set it to true.")
        return value

    def action_logprob(self, env_obs: Tree[Any], action: Any) -> Tensor:
        """`[B]`, the log-probability of the chunk `[B, K, A]`; no gradient reaches what makes the features."""
        features = self._features(self._context(env_obs)).detach()
        latent = self.distribution.latent(torch.as_tensor(action, dtype=features.dtype, device=features.device))
        return self.distribution.logprob(latent, self._given(features), "chunk_level")

    def q_values(self, env_obs: Tree[Any], action: Any) -> Tensor:
        return self.q_head(*self._judged_by_critics(env_obs, action))

    def batch_q_values(self, env_obs: Tree[Any], action: Any) -> Tensor:
        """`[B, N]` by the statistics of this batch; see `rlinf.core.off_policy.HasQBatchNorm`. Ordinary critics have none."""
        judged = self._judged_by_critics(env_obs, action)
        return self.q_head(*judged, training=True) if isinstance(self.q_head, CrossQHead) else self.q_head(*judged)

    def dropped_q_values(self, env_obs: Tree[Any], action: Any, *, generator: torch.Generator | None = None) -> Tensor:
        features, unit = self._judged_by_critics(env_obs, action)
        return (
            # Critics of CrossQ have no units to drop: their configuration refuses it.
            self.q_head(features, unit) if isinstance(self.q_head, CrossQHead) else self.q_head(features, unit, generator=generator)
        )

    def _judged_by_critics(self, env_obs: Tree[Any], action: Any) -> tuple[Tensor, Tensor]:
        """Features `[B, W]`, and the action `[B, K · A]` in units of its range."""
        features = self._features(self._context(env_obs))
        return features, self.distribution.unit(torch.as_tensor(action, dtype=features.dtype, device=features.device))


class ActionValues(ActorCritic):
    """What an actor-critic of one numbered action can do beyond others; see `rlinf.core.off_policy.HasActionValues`.

    Its actor's scores of the choices are their values: the most likely action is that of the greatest value.
    """

    def action_values(self, env_obs: Tree[Any]) -> Tensor:
        return at_least_float32(self._output(self._features(self._context(env_obs))))


def make_q_head(config: ActorCriticConfig, width: int, actions: int) -> MultiQHead | CrossQHead:
    """The Q-functions that a configuration asks for.

    Args:
        config: of the actor-critic.
        width: W, of the features.
        actions: K · A.
    """
    if config.q_head == "crossq":
        return CrossQHead(width, actions, config.num_q_heads, config.q_hidden_sizes)
    return MultiQHead(
        width, actions, config.num_q_heads, config.q_hidden_sizes, layer_norm=config.q_layer_norm, dropout=config.q_dropout
    )
