"""The configuration of a model that says how much of a task is left; light to import, the network is in `_returns`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, expect_sizes
from rlinf.models.layers.choices import Activation, Preset
from rlinf.models.observations.cameras import CAMERAS, cameras_of

if TYPE_CHECKING:
    from rlinf.models.reward_models._returns import ReturnModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnModelConfig:
    """How a recorded episode will end, as a distribution over returns in [−1, 0]: `model_type: recap_value_model`.

    It sees the images, the states and the words of the task that the dataset has. Apart from its size it is the value function of
    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), sec. IV, arXiv:2511.14759.
    """

    bins: int = 201
    """Z, equal steps of the return, at least 2."""
    preset: Preset = "base"
    """The size of the residual networks that see images."""
    cameras: tuple[str, ...] | None = None
    """Which keys of the observation: `main_images`, `wrist_images`, `extra_view_images`; all that there are if None."""
    image_features: int = 256
    """Numbers for each view."""
    use_states: bool = True
    """Whether `states` are seen."""
    word_features: int = 32
    """Numbers for the words of the task."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    activation: Activation = "silu"
    """What follows each hidden layer."""

    def __post_init__(self) -> None:
        expect_at_least("bins", self.bins, 2)
        for name in ("image_features", "word_features"):
            expect_at_least(name, getattr(self, name), 1)
        expect_sizes("hidden_sizes", self.hidden_sizes)

    @property
    def traits(self) -> PolicyTraits:
        """It does not act."""
        seen = (*(self.cameras or CAMERAS), *((STATES,) if self.use_states else ()))
        return PolicyTraits(
            critic=False,
            entropy=False,
            q_functions=False,
            recurrent=False,
            language=False,
            judges="states",
            any_observation=seen,
            chunk=1,
        )

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

        present = any(key in spec.observation for key in CAMERAS)
        cameras = cameras_of(spec, self.cameras, "recap_value_model") if present or self.cameras else ()
        shape = spec.observation[STATES].shape if self.use_states and STATES in spec.observation else None
        if shape is not None and len(shape) != 1:
            raise ConfigError("recap_value_model", f"expected states [D], found {shape}", "Set use_states: false.")
        if not cameras and shape is None:
            found = f"expected images or states, found {sorted(spec.observation)}"
            raise ConfigError("recap_value_model", found, "Choose a dataset with one of them, or set use_states: true.")
        states, words = None if shape is None else shape[0], "task_descriptions" in spec.observation
        with seeded_weights(seed):
            return ReturnModel(self, cameras=cameras, states=states, words=words, seed=seed)
