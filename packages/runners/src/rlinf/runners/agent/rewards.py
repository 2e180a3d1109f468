"""The reward of episodes that bring their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.rewards import RewardSample


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowReward:
    """Nothing beside what the workflow itself gives, by name: `reward.reward_type: workflow`; for games, and other judges."""

    def score_samples(self, samples: Sequence[RewardSample]) -> list[float]:
        """0 for each; the workflow's own reward is added to every score."""
        return [0.0] * len(samples)
