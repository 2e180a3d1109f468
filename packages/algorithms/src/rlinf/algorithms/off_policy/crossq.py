"""CrossQ by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.crossq import crossq_critic_loss, joint_batch
from rlinf.algorithms.off_policy.settings import apart
from rlinf.algorithms.off_policy.soft import SoftActorCritic
from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import HasQBatchNorm, Judges, Learner
from rlinf.core.replay import Transitions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossQ(SoftActorCritic):
    """Soft actor-critic without target networks: `algorithm.loss_type: crossq`, with `actor.model.q_head: crossq`.

    Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"
    (2024), sec. 3, arXiv:1902.05605. Critics with batch renormalisation judge both ends of the transitions in one pass, and learn
    from what they said of the second. The paper's settings beside these: `actor.optim.adam_beta1: 0.5`, `lr: 1e-3`, critics of
    2,048 units; there actors are normalised, too. Statistics are those of a micro-batch, so that there should be only one.
    """

    critic_actor_ratio: int = 3
    """Updates of the critics for one of the actor and of the temperature."""

    @property
    def judges(self) -> Judges:
        return "batch_normalized_q_functions"

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        """The critic, and the actor.

        Raises:
            ConfigError: the policy does not tell them apart, or has no critics that normalise by a batch.
        """
        if not isinstance(policy, HasQBatchNorm):
            found = f"the critics of {type(policy).__name__} can't normalise by the statistics of a batch"
            raise ConfigError("actor.model.model_type", found, "Choose mlp_policy or cnn_policy with q_head: crossq.")
        return apart(policy)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """There are no target weights."""
        return None

    def critic_loss(self, learner: Learner, batch: Transitions[Tensor], generator: torch.Generator | None) -> LossOutput[Tensor]:
        with torch.no_grad():
            action, logprob = learner.policy.sample_action(batch.observation_next, generator=generator)
        now: Tree[Tensor] = {"observation": batch.observation, "action": batch.action}
        joint: Any = joint_batch(now, {"observation": batch.observation_next, "action": action})
        # Only here by the statistics of the batch, which the running ones learn from; the actor's critics use those.
        q = learner.policy.batch_q_values(joint["observation"], joint["action"])
        return crossq_critic_loss(
            q,
            batch.reward,
            batch.terminated,
            logprob,
            gamma=batch.discount,
            alpha=self.alpha(learner),
            aggregate=self.agg_q,
            backup_entropy=self.backup_entropy,
            bootstrap=self.bootstrap_type,
            huber_delta=self.huber_delta,
            weight=batch.weight,
        )
