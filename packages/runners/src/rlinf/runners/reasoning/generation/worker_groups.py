"""The groups of a reasoning run, and the channels between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.core.protocols import TrainerConfig, WorkerGroup
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology
from rlinf.runners.training.data_shares import share_of

if TYPE_CHECKING:
    from rlinf.runners.reasoning.actor_worker import ReasoningActor
    from rlinf.runners.reasoning.generation.reward import LanguageRewardWorker
    from rlinf.runners.reasoning.generation.rollout import LanguageRolloutWorker
    from rlinf.runners.reasoning.inference_worker import InferenceWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroups:
    """The groups of a run."""

    rollout: WorkerGroup[LanguageRolloutWorker]
    """Writes."""
    reward: WorkerGroup[LanguageRewardWorker]
    """Scores."""
    actor: WorkerGroup[ReasoningActor] | None = None
    """Trains; None where nothing does."""
    inference: WorkerGroup[InferenceWorker] | None = None
    """Scores under the reference; None where the actor does that, or nobody."""
    tools: WorkerGroup[Any] | None = None
    """Runs the tools of agents; None where the rollout workers do."""

    def topology(self, trainer: TrainerConfig) -> ReasoningTopology:
        """What each must know of the others.

        Args:
            trainer: which actor ranks share samples.

        Raises:
            ConfigError: so many actors can't share the model.
        """
        actors = 0 if self.actor is None else self.actor.world_size
        return ReasoningTopology(
            actor="" if self.actor is None else self.actor.name,
            actor_ranks=actors,
            actor_shares=tuple(share_of(trainer, rank, actors)[0] for rank in range(actors)),
            rollout=self.rollout.name,
            rollout_ranks=self.rollout.world_size,
            reward_ranks=self.reward.world_size,
            inference_ranks=0 if self.inference is None else self.inference.world_size,
            tool_ranks=0 if self.tools is None else self.tools.world_size,
        )

    def channels(self) -> Channels:
        """New channels between them; none is hosted by a rollout or a tool worker, with which it would die."""
        cluster = self.reward.cluster
        return Channels(
            completions=cluster.create_channel("completions", near=self.reward.name),
            trajectories=cluster.create_channel("trajectories", near=self.reward.name if self.actor is None else self.actor.name),
            reference_requests=cluster.create_channel("reference_requests", near=self.reward.name),
            references=cluster.create_channel("references", near=self.reward.name),
            tool_calls=cluster.create_channel("tool_calls", near=self.reward.name),
            tool_answers=cluster.create_channel("tool_answers", near=self.reward.name),
        )
