"""The configuration of a model that says how much of a task is left; light to import, the network is in `_returns`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.models.reward_models.observed import JudgeConfig

if TYPE_CHECKING:
    from rlinf.models.reward_models._returns import ReturnModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnModelConfig(JudgeConfig):
    """How a recorded episode will end, as a distribution over returns in [−1, 0]: `model_type: recap_value_model`.

    Apart from its size it is the value function of Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025),
    sec. IV, arXiv:2511.14759.
    """

    bins: int = 201
    """Z, equal steps of the return, at least 2."""

    def __post_init__(self) -> None:
        expect_at_least("bins", self.bins, 2)
        self.check_sizes()

    @property
    def traits(self) -> PolicyTraits:
        return self.judging("states")

    def build(self, spec: EnvSpec, *, seed: int) -> ReturnModel:
        """The model with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: what is observed; states `[D]`, images, or both.
            seed: decides the weights.

        Raises:
            ConfigError: there is nothing that it could see.
        """
        from rlinf.models.reward_models._returns import ReturnModel
        from rlinf.models.seeding import seeded_weights

        observed = self.observed(spec, "recap_value_model")
        with seeded_weights(seed):
            return ReturnModel(self, observed, seed=seed)
