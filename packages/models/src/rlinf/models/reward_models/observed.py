"""What a model that judges recorded states has in common with others: what it sees of a dataset, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, expect_sizes
from rlinf.models.layers.choices import Activation, Preset
from rlinf.models.observations.cameras import CAMERAS, Camera, cameras_of


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is to see in a dataset, for a model that looks at it."""

    cameras: Sequence[Camera]
    """Through which it looks; () for none."""
    states: int | None
    """D, None if states are not seen."""
    words: bool
    """Whether it is told the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """A model that sees the images, the states and the words of the task that a dataset has, and does not act."""

    preset: Preset = "base"
    """The size of the residual networks that see images."""
    cameras: tuple[str, ...] | None = None
    """Which keys of the observation: `main_images`, `wrist_images`, `extra_view_images`; all that there are if None."""
    image_features: int = 256
    """How many numbers the image of each camera becomes."""
    use_states: bool = True
    """Whether `states` are seen beside the images; false for a model that must not depend on the robot."""
    word_features: int = 32
    """Numbers for the words of the task."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer between what is seen and what is said of it."""
    activation: Activation = "silu"
    """What follows each hidden layer."""

    def check_sizes(self) -> None:
        """Refuses networks of no size."""
        for name in ("image_features", "word_features"):
            expect_at_least(name, getattr(self, name), 1)
        expect_sizes("hidden_sizes", self.hidden_sizes)

    def judging(self, judges: Literal["states", "pairs of states"]) -> PolicyTraits:
        """It does not act, and says that of what it judges."""
        seen = (*(self.cameras or CAMERAS), *((STATES,) if self.use_states else ()))
        return PolicyTraits(
            critic=False,
            entropy=False,
            q_functions=False,
            recurrent=False,
            language=False,
            judges=judges,
            any_observation=seen,
            chunk=1,
        )

    def observed(self, spec: EnvSpec, by: str) -> Observed:
        """What it sees of a dataset.

        Args:
            spec: what is observed; states `[D]`, images, or both.
            by: its name, for errors.

        Raises:
            ConfigError: there is nothing that it could see.
        """
        present = any(key in spec.observation for key in CAMERAS)
        cameras = cameras_of(spec, self.cameras, by) if present or self.cameras else ()
        shape = spec.observation[STATES].shape if self.use_states and STATES in spec.observation else None
        if shape is not None and len(shape) != 1:
            raise ConfigError(by, f"expected states [D], found {shape}", "Set use_states: false.")
        if not cameras and shape is None:
            found = f"expected images or states, found {sorted(spec.observation)}"
            raise ConfigError(by, found, "Choose a dataset with one of them, or set use_states: true.")
        return Observed(cameras, None if shape is None else shape[0], "task_descriptions" in spec.observation)
