"""The configuration of GR00T-N1.5; light to import, the model is in `_policy`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, acting, check_vla, expect_sizes, expect_source
from rlinf.models.flow import FlowSampling
from rlinf.models.gr00t.metadata import check_statistics
from rlinf.models.gr00t.shapes import BASE, TINY, GR00TShape
from rlinf.models.importing import import_transformers
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
        most = math.inf if self._preset is None else self._preset.head.horizon
        expect_range("num_action_chunks", self.num_action_chunks, 1, most)
        expect_at_least("max_prompt_tokens", self.max_prompt_tokens, 1)
        expect_sizes("value_hidden", self.value_hidden or ())
        if not self.default_task.strip():
            raise ConfigError("default_task", f"expected a task in words, found '{self.default_task}'")
        if self.embodiment_tag not in EMBODIMENTS:
            raise ConfigError("embodiment_tag", f"expected one of {', '.join(EMBODIMENTS)}, found '{self.embodiment_tag}'")

    @property
    def traits(self) -> PolicyTraits:
        return acting(
            critic=self.add_value_head,
            any_observation=(*CAMERAS, STATES),
            chunk=self.num_action_chunks,
            largest_action=None if self._preset is None else self._preset.head.action_size,
            sampling=self.sampling,
            compiled=True,
        )

    @property
    def _preset(self) -> GR00TShape | None:
        """The sizes of the preset; None where a folder has them."""
        return None if self.preset is None else {"tiny": TINY, "base": BASE}[self.preset]

    def check(self, place: str) -> None:
        """Refuses a folder that is not there.

        Raises:
            MissingExtra: transformers is not installed.
            ConfigError: there is no such folder, or none, and `state_keys` or `action_keys` are of one.
        """
        check_vla(self.model_path, place, state_keys=self.state_keys, action_keys=self.action_keys)

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        """Refuses prompts that are longer than `max_prompt_tokens`; see `rlinf.core.declarations.ChecksTasks`.

        Without `spec` the text around images is not counted.
        """
        # After the refusals that need no tokenizer.
        from rlinf.models.gr00t.observation import Reader
        from rlinf.models.gr00t.prompt import Prompter, tokenizer_of

        # The texts of a folder are those of the published sizes.
        shape = self._preset or BASE
        reader = None if spec is None else Reader.of(spec, image_size=shape.vision.image_size, crop=shape.crop)
        if reader is not None and reader.tells_task and not texts:
            return
        tokenizer = tokenizer_of(self.preset, self.model_path, self.tokenizer_path)
        prompter = Prompter(tokenizer, shape, views=0 if reader is None else reader.views, room=self.max_prompt_tokens)
        told = texts if reader is None or reader.tells_task else ()
        beside = "" if reader is not None or shape is TINY else "its images"
        prompter.expect_room(told or [self.default_task], place, beside=beside)

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
            MissingExtra: transformers is not installed.
        """
        import_transformers("tokenizers", place="gr00t", extra="rlinf-models[vla]")
        from rlinf.models.gr00t._policy import build

        return build(self, spec, seed=seed)
