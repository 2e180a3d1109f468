"""The configuration of critics that say how far a task got between two states; light to import, the network is in `_progress`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.models.reward_models.observed import JudgeConfig

if TYPE_CHECKING:
    from rlinf.models.reward_models._progress import ProgressModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressModelConfig(JudgeConfig):
    """How far apart two states of an episode are, as distributions over offsets in [−1, 1]: `model_type: steam_value_model`.

    N critics, each of which learns the offset between two frames of an episode that was solved, as a share of that episode.
    Liu et al., "STEAM: Self-Supervised Temporal Ensemble Advantage Modeling for Real-World Robot Learning" (2026),
    arXiv:2606.29834, abstract; their networks are others.
    """

    bins: int = 201
    """Z, equal steps of the offset, at least 2."""
    ensemble: int = 3
    """N, critics with weights of their own, whose lowest answer counts; at least 1."""

    def __post_init__(self) -> None:
        expect_at_least("bins", self.bins, 2)
        expect_at_least("ensemble", self.ensemble, 1)
        self.check_sizes()

    @property
    def traits(self) -> PolicyTraits:
        return self.judging("pairs of states")

    def build(self, spec: EnvSpec, *, seed: int) -> ProgressModel:
        """The critics with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: what is observed; states `[D]`, images, or both.
            seed: decides the weights.

        Raises:
            ConfigError: there is nothing that they could see.
        """
        from rlinf.models.reward_models._progress import ProgressModel
        from rlinf.models.seeding import seeded_weights

        observed = self.observed(spec, "steam_value_model")
        with seeded_weights(seed):
            return ProgressModel(self, observed, seed=seed)
