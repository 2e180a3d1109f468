"""The configuration of a reward for a text; light to import, transformers is reached when one is built."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.actor_config import folder_of
from rlinf.models.importing import import_transformers
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

    def check(self, place: str) -> None:
        """Refuses a folder that is not whole, or without a head where none may be drawn; see `NetworkConfig.check`.

        Raises:
            ConfigError: it is a language model, or has several labels.
            CheckpointError: its configuration can't be read.
        """
        NetworkConfig.check(self, place)
        folder = folder_of(self.model_path)
        if folder is None or self.fresh_head:
            return
        try:
            own = cast("dict[str, Any]", json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            remedy = "Point to a folder in the layout of Hugging Face."
            raise CheckpointError(str(folder / "config.json"), f"can't be read ({error})", remedy) from error
        kinds = [str(kind) for kind in cast("list[Any]", own.get("architectures") or [])]
        # transformers leaves the names of labels out where there are two.
        labels = len(own.get("id2label") or (0, 1))
        if labels != 1 or not any(kind.endswith("ForSequenceClassification") for kind in kinds):
            told = f"{', '.join(kinds) or 'no architecture'} with {labels} labels"
            problem = f"expected a sequence classifier with one label in '{self.model_path}', found {told}"
            remedy = "Name a reward model; apps/reasoning/sft.py trains one, of a language model with fresh_head: true."
            raise ConfigError(f"{place}.model_path", problem, remedy)

    def build(self, *, seed: int) -> SequenceReward:
        """The reward model; torch's global generator is neither read nor moved.

        Raises:
            ConfigError: an unknown architecture or override.
            CheckpointError: the folder misses weights.
        """
        import_transformers(place="sequence_reward", extra="rlinf-models[language]")
        from rlinf.models.reward_models._sequence import build_sequence_reward

        return build_sequence_reward(self, seed=seed)
