"""The configurations of reward models; light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules
from rlinf.models.language.config import Attention, CausalLMConfig, Precision, Preset, VisionLanguageConfig, check_source
from rlinf.models.lora import LoRAConfig
from rlinf.models.resnet import Pooling
from rlinf.models.resnet import Preset as ResNetPreset

if TYPE_CHECKING:
    from rlinf.models.reward_models.sequence import SequenceReward
    from rlinf.models.reward_models.success import SuccessClassifier
    from rlinf.models.reward_models.yes_no import YesNoReward


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRewardConfig:
    """A language model with one number at the last token: what transformers calls sequence classification with one label."""

    model_path: str | None = None
    """A local folder: of a reward model, or with `fresh_head` of a language model."""
    preset: Preset | None = None
    """Random weights; exactly one of this and `model_path`."""
    architecture: str = "qwen3"
    """The `model_type` of transformers, for a preset."""
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the model's own configuration that differ."""
    fresh_head: bool = False
    """Whether a folder may lack the head, which is drawn from the seed then."""
    lora: LoRAConfig | None = None
    """Adapters, beside which only the head is trained."""
    precision: Precision = "fp32"
    """The type of the weights; scores are float32 in any case."""
    attention: Attention = "sdpa"
    """The kernel, as for `CausalLMConfig`."""
    gradient_checkpointing: bool = False
    """Whether hidden states of layers are computed again on the way back, in the module's train mode."""

    def __post_init__(self) -> None:
        check_source(self.model_path, self.preset)

    def build(self, *, seed: int) -> SequenceReward:
        """The reward model; torch's global generator is neither read nor moved.

        Raises:
            ConfigError: an unknown architecture or override.
            CheckpointError: the folder misses weights.
        """
        require_modules("transformers", place="sequence_reward", extra="rlinf-models[language]")
        from rlinf.models.reward_models._sequence import build_sequence_reward

        return build_sequence_reward(self, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class YesNoRewardConfig:
    """A model that is asked a question, with or without images, and answers yes or no in one token."""

    yes_id: int
    """The token of "yes"."""
    no_id: int
    """The token of "no"."""
    vlm: VisionLanguageConfig | None = None
    """Who is asked; exactly one of this and `causal_lm`."""
    causal_lm: CausalLMConfig | None = None
    """Who is asked where there are no images."""

    def __post_init__(self) -> None:
        if (self.vlm is None) == (self.causal_lm is None):
            raise ConfigError("vlm", "expected exactly one of vlm and causal_lm", "Set one of them.")
        if self.yes_id == self.no_id:
            raise ConfigError("yes_id", f"expected two tokens, found {self.yes_id} twice")

    def build(self, *, seed: int) -> YesNoReward:
        """The reward model; see `VisionLanguageConfig.build`."""
        from rlinf.models.reward_models.yes_no import YesNoReward

        asked = self.vlm or self.causal_lm
        if asked is None:
            raise ConfigError("vlm", "expected exactly one of vlm and causal_lm", "Set one of them.")
        return YesNoReward(asked.build(seed=seed), yes_id=self.yes_id, no_id=self.no_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessClassifierConfig:
    """A small residual network that says whether a frame shows success."""

    image_size: tuple[int, int]
    """Height and width of frames in pixels."""
    preset: ResNetPreset = "base"
    """The size of the network."""
    pooling: Pooling = "spatial_embeddings"
    """How feature maps become vectors."""
    hidden_sizes: tuple[int, ...] = (256,)
    """Units of the layers between features and log-odds."""
    positive_weight: float = 1.0
    """What a success counts in the loss, where successes are rare."""

    def __post_init__(self) -> None:
        if min(self.image_size) < 8:
            raise ConfigError("image_size", f"expected at least 8 pixels a side, found {list(self.image_size)}")
        if self.positive_weight <= 0:
            raise ConfigError("positive_weight", f"expected a number above 0, found {self.positive_weight}")

    def build(self, *, seed: int) -> SuccessClassifier:
        """The classifier with fresh weights; torch's global generator is neither read nor moved."""
        from rlinf.models.reward_models.success import SuccessClassifier
        from rlinf.models.seeding import seeded_weights

        with seeded_weights(seed):
            return SuccessClassifier(self)
