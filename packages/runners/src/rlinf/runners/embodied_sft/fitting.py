"""Whether demonstrations fit a policy and a simulator, by what describes all three."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import NamesFeatures, OfflineConfig, OfflineSource
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.runners.config.rules import fault_of
from rlinf.runners.config.schema import ModelSection
from rlinf.runners.embodied.action_rules import large_actions
from rlinf.runners.embodied_sft.demonstrations import TEXTS, expect_finite

_IMAGE_AXES = 3
"""`[H, W, 3]`."""
_CAMERAS: Final = ("main_images", "wrist_images", "extra_view_images")
_STATES: Final = "states"


@dataclass(frozen=True, slots=True)
class Fitting:
    """Demonstrations of a run and who learns from them; each fault has the names of both sides."""

    model: ModelSection
    dataset: OfflineConfig
    source: OfflineSource
    """The dataset, opened."""
    chunk_length: int | None
    """Actions of an example; None: as many as the policy decides at once."""
    place: str
    """The section of the dataset."""

    def unfit_for_model(self) -> Iterator[ConfigError]:
        """What the policy can't learn from."""
        yield from self._unseen()
        yield from self._of_another_kind()
        yield from self._unfit_chunk()
        yield from self._too_short()
        shape = self.source.spec.action.shape
        large = large_actions(self.model, shape[0] if shape else None, f"actions of '{self.source.name}' have")
        yield from [] if large is None else [large]

    def not_finite(self) -> Iterator[ConfigError]:
        """The first number that is infinite or none; of data with pictures nothing, as these are long to read: who learns looks."""
        if any(len(leaf.shape) >= _IMAGE_AXES for leaf in self.source.spec.observation.values()):
            return
        for episode in self.source.episodes():
            fault = fault_of(partial(expect_finite, episode, self.place))
            if fault is not None:
                yield fault
                return

    def _unseen(self) -> Iterator[ConfigError]:
        source = self.source
        spec, name, traits = source.spec, self.model.model_type, traits_of(self.model.config)
        seen, features = traits.any_observation, ", ".join(source.features)
        if seen and not set(seen) & set(spec.observation):
            problem = f"'{name}' sees {', '.join(seen)}, at least one of them, and '{source.name}' has none"
            yield ConfigError(
                f"{self.place}.keys", problem, f"Name the feature, as {self.place}.keys.{seen[-1]}=…; its features are {features}."
            )
        for key in traits.observations or ():
            if key in spec.observation:
                continue
            if key == TEXTS:
                remedy = "Record it with tasks (data_collection.task, or task_descriptions among the observations)."
                yield ConfigError(
                    self.place, f"'{name}' follows instructions, and an episode of '{source.name}' has no task", remedy
                )
            else:
                has = ", ".join(sorted(spec.observation))
                remedy = f"Name the feature: {self.place}.keys.{key}=…; its features are {features}."
                yield ConfigError(f"{self.place}.keys", f"'{name}' sees '{key}', and '{source.name}' has {has}", remedy)

    def _of_another_kind(self) -> Iterator[ConfigError]:
        """Features under the name of a camera that are no pictures, and the other way round."""
        traits, source = traits_of(self.model.config), self.source
        spec = source.spec.observation
        for key in sorted({*(traits.observations or ()), *traits.any_observation} & {*spec} - {TEXTS}):
            shape, pictures = spec[key].shape, key in _CAMERAS
            if pictures == (len(shape) < _IMAGE_AXES):
                wanted = "pictures" if pictures else "numbers"
                problem = f"expected {wanted}, found a feature of the shape {list(shape)} in '{source.name}'"
                yield ConfigError(f"{self.place}.keys.{key}", problem, f"Its features are {', '.join(source.features)}.")

    def unknown_keys(self, env: EnvSpec | None) -> Iterator[ConfigError]:
        """Names that nothing sees, of which one was mistyped."""
        if not isinstance(self.dataset, NamesFeatures):
            return
        traits = traits_of(self.model.config)
        shown = () if env is None else tuple(env.observation)
        known = sorted({*_CAMERAS, _STATES, *(traits.observations or ()), *traits.any_observation, *shown} - {TEXTS})
        for key in self.dataset.keys:
            if key not in known:
                problem = f"neither '{self.model.model_type}' nor an environment calls anything '{key}'"
                yield ConfigError(f"{self.place}.keys.{key}", problem, did_you_mean(key, known))

    def _unfit_chunk(self) -> Iterator[ConfigError]:
        learned, traits = self.chunk_length, traits_of(self.model.config)
        if learned is None or traits.chunk is None:
            return
        if learned < traits.chunk:
            problem = f"expected at least the {traits.chunk} steps that the policy decides at once, found {learned}"
            yield ConfigError(f"{self.place}.chunk_length", problem, "Leave it out, or lower actor.model.num_action_chunks.")
        # What can go on from a chunk in execution is a flow, whose horizon may be longer than what it executes.
        elif learned > traits.chunk and traits.real_time_chunking is False:
            problem = f"'{self.model.model_type}' decides {traits.chunk} steps at once and learns no more, found {learned}"
            yield ConfigError(f"{self.place}.chunk_length", problem, "Leave it out, or raise actor.model.num_action_chunks.")

    def _too_short(self) -> Iterator[ConfigError]:
        source, longest = self.source, self.source.spec.max_episode_steps
        chunk, key = self.chunk_length, f"{self.place}.chunk_length"
        if chunk is None:
            chunk, key = traits_of(self.model.config).chunk, "actor.model.num_action_chunks"
        if chunk is None:
            remedy = "Set it to the steps of a decision."
            yield ConfigError(
                f"{self.place}.chunk_length", f"'{self.model.model_type}' does not say how many steps it decides", remedy
            )
        elif chunk > longest:
            problem = f"a chunk of {chunk} steps, and the longest episode of '{source.name}' has {longest}"
            yield ConfigError(key, problem, f"Use at most {longest}.")

    def unfit_for_env(self, section: str, env_type: str, env: EnvSpec, *, of_env: bool = False) -> Iterator[ConfigError]:
        """Other actions and other observations than those of a simulator.

        Args:
            section: that of the simulator.
            env_type: its name.
            env: what it shows and takes.
            of_env: whether the policy is built for what the simulator shows, and not for what the dataset has.
        """
        theirs = f"{section}.env_type '{env_type}'"
        # Policies resize pictures.
        yield from other_shapes(self.source, self.place, theirs, env, any_size=True)
        for key in traits_of(self.model.config).observations or ():
            if key not in env.observation:
                problem = f"'{self.model.model_type}' sees '{key}', and {theirs} has {', '.join(sorted(env.observation))}"
                yield ConfigError(f"{section}.init_params", problem, "Choose the environment that it was recorded in.")
        yield from self._other_cameras(section, theirs, env, of_env=of_env)

    def _other_cameras(self, section: str, theirs: str, env: EnvSpec, *, of_env: bool) -> Iterator[ConfigError]:
        """Cameras for which the policy is built, as one side has them, and that the other side lacks."""
        traits = traits_of(self.model.config)
        named = any(key in _CAMERAS for key in traits.observations or ())
        # One that names its cameras sees no others of `any_observation`.
        seen = {*traits.optional_observations, *(() if named else traits.any_observation)}
        recorded, shown = ([key for key in _CAMERAS if key in spec.observation] for spec in (self.source.spec, env))
        built, other = (shown, recorded) if of_env else (recorded, shown)
        lacking = [key for key in built if key in seen and key not in other]
        if lacking:
            sides = f"'{self.source.name}' has {_listed(recorded)}, and {theirs} {_listed(shown)}"
            missing = f"and {_listed(lacking)} is on one side only: {sides}"
            problem = f"'{self.model.model_type}' is built for the cameras that it finds, {missing}"
            remedy = "Choose the environment that it was recorded in."
            yield ConfigError(f"{self.place}.keys" if of_env else f"{section}.init_params", problem, remedy)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def other_shapes(source: OfflineSource, place: str, theirs: str, env: EnvSpec, *, any_size: bool) -> Iterator[ConfigError]:
    """Actions of a dataset, and observations that a simulator shows, too, of which both have another shape.

    Args:
        source: the dataset, opened.
        place: its section.
        theirs: the simulator, for messages.
        env: what the simulator shows and takes.
        any_size: whether pictures may differ in height and width.
    """
    ours, data, remedy = f"'{source.name}'", source.spec, "Choose the environment that it was recorded in, or another feature."
    if data.action.shape != env.action.shape:
        problem = f"actions of {ours} have the shape {list(data.action.shape)}, those of {theirs} {list(env.action.shape)}"
        yield ConfigError(f"{place}.action", problem, remedy)
    for key in sorted({*data.observation} & {*env.observation} - {TEXTS}):
        recorded, simulated = data.observation[key].shape, env.observation[key].shape
        # Views in front and colours behind stay: of another number of either, nothing can be made.
        alike = (recorded[:-_IMAGE_AXES], recorded[-1:]) == (simulated[:-_IMAGE_AXES], simulated[-1:])
        resized = any_size and len(recorded) == len(simulated) >= _IMAGE_AXES and alike
        if recorded != simulated and not resized:
            problem = f"'{key}' of {ours} has the shape {list(recorded)}, that of {theirs} {list(simulated)}"
            yield ConfigError(f"{place}.keys.{key}", problem, remedy)
