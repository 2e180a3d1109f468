"""What every worker of a reasoning run must know of the others, and what they say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.core.agents import Episode
from rlinf.core.data import Completion, Trajectory
from rlinf.core.protocols import Channel
from rlinf.runners.reasoning.generation.prompt_groups import PromptGroup

Written = Completion[Any] | Episode
"""A member of a group: one completion, or the episode of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTopology:
    """Derived once from the groups' sizes; the same object goes to all workers."""

    actor: str
    """The name of the actor group; "" where nothing trains."""
    actor_ranks: int
    """The size of the actor group."""
    rollout: str
    """The name of the rollout group."""
    rollout_ranks: int
    """The size of the rollout group."""
    reward_ranks: int
    """The size of the reward group."""
    inference_ranks: int = 0
    """The size of the group that scores under the reference; 0 where the actor does that itself."""
    tool_ranks: int = 0
    """The size of the group in which tools run; 0 where they run in the rollout workers."""
    actor_shares: tuple[int, ...] = ()
    """Which share of the samples each actor rank trains on; () where each has one of its own."""

    def share(self, actor_rank: int) -> int:
        """Which share of the samples an actor rank trains on."""
        return self.actor_shares[actor_rank] if self.actor_shares else actor_rank

    @property
    def shares(self) -> int:
        """Into how many shares the samples are parted."""
        return len(set(self.actor_shares)) if self.actor_shares else self.actor_ranks

    def reward_rank(self, rollout_rank: int) -> int:
        """Which reward worker scores what a rollout worker writes."""
        return rollout_rank % self.reward_ranks

    def scored_by(self, reward_rank: int) -> range:
        """The rollout workers whose responses a reward worker scores."""
        return range(reward_rank, self.rollout_ranks, self.reward_ranks)

    def inference_rank(self, reward_rank: int) -> int:
        """Which inference worker serves a reward worker."""
        return reward_rank % max(1, self.inference_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a run."""

    completions: Channel
    """From rollout to reward: `WrittenGroup`, keyed by `queue_name(job, reward rank)`."""
    trajectories: Channel
    """From reward to actor: `(reward rank, Trajectory or None)`, keyed by actor rank; ranks of one share get the same."""
    reference_requests: Channel
    """From reward to inference: `ReferenceRequest` or None, keyed by inference rank."""
    references: Channel
    """From inference to reward: `(group, log-probabilities)`, keyed by reward rank."""
    tool_calls: Channel
    """From rollout to tools: `ToolRequest`, and None from the runner at the end, keyed by `queue_name(job, tool rank)`."""
    tool_answers: Channel
    """From tools to rollout: `ToolAnswer` and `ToolWorkerStarted`, keyed by `queue_name(job, rollout rank)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenGroup:
    """A group that a rollout worker has finished."""

    prompt_group: PromptGroup
    """What was asked."""
    completions: tuple[Written, ...]
    """One for each member, NumPy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRequest:
    """A group whose log-probabilities under the reference are asked for."""

    reward_rank: int
    """The reward worker that asks."""
    trajectory: Trajectory[Any]
    """NumPy."""


def queue_name(job: str, rank: int) -> str:
    """The queue of a job at a worker: of completions at a reward worker, of calls at a tool worker, of answers to its callers."""
    return f"{job}/{rank}"
