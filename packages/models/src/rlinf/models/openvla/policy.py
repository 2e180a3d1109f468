"""The configuration of OpenVLA; light to import, the model is in `_policy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import acting, check_sampling, expect_source
from rlinf.models.importing import import_transformers
from rlinf.models.lora import LoRAConfig
from rlinf.models.openvla.folder import ReadsFolder

if TYPE_CHECKING:
    from rlinf.models.openvla._policy import OpenVLAPolicy

IMAGES, TASKS = "main_images", "task_descriptions"


@dataclass(frozen=True, slots=True)
class OpenVLAPolicyConfig(ReadsFolder):
    """A language model that sees, and writes actions token by token, by name: `model_type: openvla`."""

    registered_as: ClassVar[str] = "openvla"

    preset: Literal["tiny", "base"] | None = None
    """`tiny`: random weights in a second; `base`: the published sizes with random weights."""
    model_path: str | None = None
    """A local folder as published: `config.json`, safetensors, tokenizer. Exactly one of the two is given."""
    num_action_chunks: int = 1
    """K, control steps in one decision."""
    logprob_type: Granularity = "action_level"
    """What has one log-probability, and so one ratio: "action_level", each control step; "token_level", each dimension of it;
    "chunk_level", the whole decision."""
    temperature: float = 1.0
    """τ of mode "train", in sampling and in scoring."""
    temperature_eval: float = 0.0
    """τ of mode "eval"; 0 takes the most likely token, anything else samples, so that mode "eval" draws random numbers."""
    top_k: int = 0
    """Only the k most likely bins are drawn; 0 for all. A token that has left them since has a ratio of 0."""
    n_action_bins: int | None = None
    """n; what `config.json` says, or 256, if None."""
    unnorm_key: str | None = None
    """Which statistics of `norm_stats` in `config.json` the actions have; needed if there are several."""
    center_crop: bool = False
    """Whether only the central 0.9 of the picture's area is seen, as by checkpoints that were trained on random crops."""
    max_prompt_length: int = 64
    """Tokens that are stored for each prompt; padding costs no computation."""
    add_value_head: bool = True
    """Whether there is a critic, on the hidden state that the first action token is read from."""
    freeze_vision: bool = False
    """Whether both vision transformers stay as they are."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of everything but the critic; log-probabilities are computed in float32."""
    lora: LoRAConfig | None = None
    """Adapters on the vision-language model."""

    def __post_init__(self) -> None:
        expect_source(self.preset, self.model_path)
        expect_at_least("num_action_chunks", self.num_action_chunks, 1)
        check_sampling(self.temperature, self.temperature_eval, self.top_k)
        expect_at_least("n_action_bins", self.n_action_bins, 2)
        expect_at_least("max_prompt_length", self.max_prompt_length, 1)

    @property
    def traits(self) -> PolicyTraits:
        return acting(critic=self.add_value_head, observations=("main_images", "task_descriptions"), chunk=self.num_action_chunks)

    def build(self, spec: EnvSpec, *, seed: int) -> OpenVLAPolicy:
        """The policy; torch's global generator is neither read nor moved.

        Args:
            spec: needs the observations `main_images` `[H, W, 3]` and `task_descriptions`, and an action of shape `[A]`.
            seed: decides the weights that no checkpoint brings.

        Raises:
            ConfigError: the environment has no such observation or action, or the checkpoint's statistics don't fit it.
            CheckpointError: the folder is incomplete.
            MissingExtra: transformers is not installed.
        """
        import_transformers("tokenizers", place="openvla", extra="rlinf-models[vla]")
        missing = [key for key in (IMAGES, TASKS) if key not in spec.observation]
        if missing or len(spec.action.shape) != 1:
            found = f"expected {IMAGES}, {TASKS} and an action [A], found {sorted(spec.observation)} and {spec.action.shape}"
            raise ConfigError("openvla", found, "Choose an environment that draws pictures, such as tabletop with obs_mode: rgb.")
        from rlinf.models.openvla._policy import build_policy

        return build_policy(self, spec, seed)
