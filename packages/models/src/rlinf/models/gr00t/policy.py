"""The configuration of GR00T-N1.5; light to import, the model is in `_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from rlinf.core.config import expect_range
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.sequences import Granularity
from rlinf.models.actor_config import STATES, acting, check_vla, expect_sizes, expect_source
from rlinf.models.flow import FlowSampling
from rlinf.models.gr00t.metadata import check_statistics
from rlinf.models.lora import LoRAConfig
from rlinf.models.observations.cameras import CAMERAS

if TYPE_CHECKING:
    from rlinf.models.gr00t._policy import GR00TPolicy

EMBODIMENTS: Final[Mapping[str, int]] = {
    "new_embodiment": 31,
    "gr1": 24,
    "oxe_droid": 17,
    "agibot_genie1": 26,
    "so100": 2,
    "unitree_g1": 3,
}
"""Robots of the public checkpoint: whose row of the per-robot weights is used; where there are fewer rows, modulo their number."""


@dataclass(frozen=True, slots=True)
class GR00TPolicyConfig:
    """A vision-language model and a diffusion transformer that denoises chunks of actions: `model_type: gr00t`."""

    preset: Literal["tiny", "base"] | None = None
    """Random weights: `tiny` builds in seconds, `base` has the sizes of the public checkpoint."""
    model_path: str | None = None
    """A folder with the public checkpoint, or one of LeRobot; exactly one of the two must be given."""
    tokenizer_path: str | None = None
    """A folder with the tokenizer of Eagle 2.5; `eagle2_hg_model` in the checkpoint's folder, or that itself, if None."""
    num_action_chunks: int = 4
    """K, the steps that are executed, of the H that are denoised."""
    embodiment_tag: str = "new_embodiment"
    """Whose encoders and decoder are used."""
    state_keys: tuple[str, ...] = ()
    """The parts of the state that have statistics in the checkpoint, in the environment's order; those of the file if none."""
    action_keys: tuple[str, ...] = ()
    """The parts of the action, likewise."""
    default_task: str = "Perform the task."
    """What to do where observations have no `task_descriptions`."""
    max_prompt_tokens: int = 64
    """Tokens of a prompt beside those of images; every prompt is padded to that."""

    sampling: FlowSampling = field(default_factory=FlowSampling)
    """How actions are denoised."""
    logprob_type: Granularity = "chunk_level"
    """One log-probability for each number, for each step, or for the whole chunk."""

    add_value_head: bool = True
    """Whether there is a critic, on the mean token of images and text, and the token of the state."""
    value_hidden: tuple[int, ...] | None = None
    """Units of the critic's hidden layers; if None 1024, 512 and 256, and fewer at the tiny size."""
    detach_critic_input: bool = True
    """Whether the critic's loss trains the critic alone."""
    train_expert_only: bool = True
    """Whether the vision-language model is frozen."""
    lora: LoRAConfig | None = None
    """Adapters in the vision-language model, whose own weights are frozen then."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the weights, but those of the critic and the noise network; the arithmetic of the flow is always fp32."""

    def __post_init__(self) -> None:
        expect_source(self.preset, self.model_path)
        if self.num_action_chunks < 1:
            raise ConfigError("num_action_chunks", f"expected at least 1, found {self.num_action_chunks}")
        expect_range("max_prompt_tokens", self.max_prompt_tokens, 1)
        expect_sizes("value_hidden", self.value_hidden or ())
        if self.embodiment_tag not in EMBODIMENTS:
            raise ConfigError("embodiment_tag", f"expected one of {', '.join(EMBODIMENTS)}, found '{self.embodiment_tag}'")

    @property
    def traits(self) -> PolicyTraits:
        """What is known of the policy before it is built."""
        return acting(critic=self.add_value_head, any_observation=(*CAMERAS, STATES), chunk=self.num_action_chunks)

    def check(self, place: str) -> None:
        """Refuses a folder that is not there.

        Raises:
            MissingExtra: transformers is not installed.
            ConfigError: there is no such folder.
        """
        check_vla(self.model_path, place)

    def check_statistics(self, place: str, actions: int | None = None) -> None:
        if self.model_path is not None:
            parts = {"state": self.state_keys, "action": self.action_keys}
            check_statistics(self.embodiment_tag, parts, self.model_path, place, actions)

    def build(self, spec: EnvSpec, *, seed: int) -> GR00TPolicy:
        """The policy; torch's global generator is neither read nor moved.

        Args:
            spec: needs a camera or a state, and an action of shape `[A]`. Finite bounds of state and action are their statistics,
                unless a checkpoint has some.
            seed: decides the weights that are not loaded.

        Raises:
            ConfigError: the environment lacks something, or has more than the model takes.
            CheckpointError: `model_path` is not the folder of a GR00T-N1.5.
        """
        from rlinf.models.gr00t._policy import build

        return build(self, spec, seed=seed)
