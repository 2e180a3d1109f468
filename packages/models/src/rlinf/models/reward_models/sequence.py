"""The configuration of a reward for a text; light to import, transformers is reached when one is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.declarations import PolicyTraits
from rlinf.core.registry import require_modules
from rlinf.models.language.policy import NetworkConfig

if TYPE_CHECKING:
    from rlinf.models.reward_models.sequence_network import SequenceReward


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRewardConfig(NetworkConfig):
    """A language model with one number at the last token: what transformers calls sequence classification with one label."""

    fresh_head: bool = False
    """Whether `model_path` may be a language model, without the head, which is drawn from the seed then."""

    @property
    def traits(self) -> PolicyTraits:
        """It writes nothing, and does not act either."""
        return PolicyTraits(critic=False, entropy=False, q_functions=False, recurrent=False, language=False, judges="texts")

    def build(self, *, seed: int) -> SequenceReward:
        """The reward model; torch's global generator is neither read nor moved.

        Raises:
            ConfigError: an unknown architecture or override.
            CheckpointError: the folder misses weights.
        """
        require_modules("transformers", place="sequence_reward", extra="rlinf-models[language]")
        from rlinf.models.reward_models._sequence import build_sequence_reward

        return build_sequence_reward(self, seed=seed)
