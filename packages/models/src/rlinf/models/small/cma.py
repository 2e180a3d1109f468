"""The configuration of the cross-modal attention policy; light to import, the model is in `_cma`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, ActorCriticConfig, expect_action
from rlinf.models.layers.choices import Preset
from rlinf.models.observations.cameras import CAMERAS, cameras_of

if TYPE_CHECKING:
    from rlinf.models.small._cma import CMAPolicy

TASKS = "task_descriptions"
_SIZES = ("vocab_size", "word_size", "max_words", "instruction_size", "image_features", "memory_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class CMAPolicyConfig(ActorCriticConfig):
    """A policy with a memory that reads an instruction while it looks: `model_type: cma`."""

    preset: Preset = "base"
    """The size of the residual networks that look."""
    cameras: tuple[str, ...] | None = None
    """Which keys of the observation: `main_images`, `wrist_images`, `extra_view_images`; all that there are if None."""
    use_states: bool = True
    """Whether `states` are seen, too, where the environment has them."""
    vocab_size: int = 8192
    """How many different numbers words are hashed to."""
    word_size: int = 50
    """How many numbers a word is embedded in."""
    max_words: int = 64
    """How many words and punctuation marks of an instruction are read; further ones are ignored."""
    instruction_size: int = 128
    """Units of the LSTM that reads the instruction, in each direction."""
    image_features: int = 256
    """Numbers for each view, and of what attention brings."""
    memory_size: int = 512
    """Of each of the two recurrent layers."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        for name in _SIZES:
            # 0 is padding, so that words need a number beside it.
            least = 2 if name == "vocab_size" else 1
            expect_at_least(name, getattr(self, name), least)

    @property
    def traits(self) -> PolicyTraits:
        seen = (TASKS, *(self.cameras or ()))
        # With `slots` the decorator makes another class, which a bare `super()` does not know.
        return replace(super(CMAPolicyConfig, self).traits, recurrent=True, observations=seen, any_observation=CAMERAS)

    def build(self, spec: EnvSpec, *, seed: int) -> CMAPolicy:
        """The policy with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: needs images of a camera, `task_descriptions`, and an action of shape `[A]`, with bounds if it is squashed.
            seed: decides the weights.

        Returns:
            A policy with Q-functions (`rlinf.core.off_policy.HasQFunctions`) if `num_q_heads` is not 0.

        Raises:
            ConfigError: the environment has no such observation or action.
        """
        from rlinf.models.small._cma import CMAPolicy, CMAQPolicy

        expect_action("cma", spec)
        cameras = cameras_of(spec, self.cameras, "cma")
        if TASKS not in spec.observation:
            found = f"expected the observation '{TASKS}', found {sorted(spec.observation)}"
            raise ConfigError("cma", found, "Choose an environment with instructions, or cnn_policy.")
        states = spec.observation[STATES].shape if self.use_states and STATES in spec.observation else (0,)
        if len(states) != 1:
            raise ConfigError("cma", f"expected states [D], found {states}", "Set use_states: false.")
        make = CMAQPolicy if self.num_q_heads else CMAPolicy
        return make(self, cameras=cameras, states=states[0], action=spec.action, seed=seed)
