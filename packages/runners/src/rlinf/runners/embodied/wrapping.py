"""What environments are wrapped in, and what a policy must know of them then, where none is running."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from rlinf.core.data import EnvSpec
from rlinf.core.declarations import MadeForSimulators, RunsElsewhere
from rlinf.core.envs.robots import LetsHumansAct
from rlinf.core.protocols import EnvConfig, EnvWrapperConfig
from rlinf.core.registry import ENV_WRAPPERS
from rlinf.runners.config.schema import chosen

Wrapping = list[tuple[str, EnvWrapperConfig]]
"""What environments are wrapped in, in order, and where each stands in the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperSection:
    """An entry of `env.train.wrappers`; it also holds the wrapper's own fields."""

    type: str
    """A registered wrapper, or `module:attr` of a class or function that is given an environment and returns one."""
    wrapper: EnvWrapperConfig = field(metadata=chosen(ENV_WRAPPERS, "type"))
    """Its own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCollectionConfig:
    """`env.train.data_collection`; its section also holds the recorder's own fields."""

    enabled: bool = True
    """Whether episodes are recorded."""
    type: str = "record_episodes"
    """A registered wrapper that records."""
    recorder: EnvWrapperConfig = field(metadata=chosen(ENV_WRAPPERS, "type"))
    """Its own fields."""


class Wrapped:
    """What `env.train` and `env.eval` both have; each says for itself what it means there."""

    place: ClassVar[str]
    """The dotted path of the section."""
    trains: ClassVar[bool] = False
    """Whether its environments are trained in, which some wrappers are for only."""
    env_type: str
    init_params: EnvConfig
    max_episode_steps: int | None
    ignore_terminations: bool
    wrappers: tuple[WrapperSection, ...]
    data_collection: DataCollectionConfig | None

    @property
    def wrapping(self) -> Wrapping:
        """What environments are wrapped in; the recorder stands before the first wrapper that is for training only."""
        entries = [(f"{self.place}.wrappers[{at}]", section.wrapper) for at, section in enumerate(self.wrappers)]
        entries = [(at, wrapper) for at, wrapper in entries if self.trains or not wrapper.training_only]
        if self.data_collection is not None and self.data_collection.enabled:
            # As the policy sees and acts in them, but for what only training changes, such as random images.
            changed = [
                number
                for number, (_, wrapper) in enumerate(entries)
                if wrapper.training_only and not isinstance(wrapper, LetsHumansAct)
            ]
            entries.insert(min([*changed, len(entries)]), (f"{self.place}.data_collection", self.data_collection.recorder))
        return entries


def fit_wrappers(config: Wrapped) -> None:
    """Lets wrappers take from the environment what they leave to it, so that what a run and a protocol state names it."""
    name, fitted = simulator_of(config), list[WrapperSection]()
    for section in config.wrappers:
        made = section.wrapper
        fitted.append(replace(section, wrapper=made.for_simulator(name)) if isinstance(made, MadeForSimulators) else section)
    # Called by `__post_init__`, before anybody else has seen the section.
    object.__setattr__(config, "wrappers", tuple(fitted))


def simulator_of(config: Wrapped) -> str:
    """The environment's registered name, in whatever process it runs."""
    runs = config.init_params.runs if isinstance(config.init_params, RunsElsewhere) else None
    return config.env_type if runs is None else runs[0]


def described(config: Wrapped) -> EnvSpec:
    """What a policy must know of an environment, of which one is built with its wrappers, and closed."""
    env = config.init_params.make(
        1, max_episode_steps=config.max_episode_steps, ignore_terminations=config.ignore_terminations, render=False
    )
    try:
        for section in config.wrappers:
            if not section.wrapper.training_only:
                env = section.wrapper.wrap(env, "description")
        return config.init_params.describe(env)
    finally:
        env.close()
