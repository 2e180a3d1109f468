"""The wrappers that a configuration can name: each with its parameters, as data.

    env:
      train:
        wrappers:                               # the first is nearest to the simulator
          - {type: action_format, format: libero}
          - {type: latency, steps: [0, 2]}
          - {type: augment_images, shift: 4}    # the last is nearest to the policy

Observations and rewards pass them from the first to the last, actions from the last to the first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from gymnasium.vector import VectorEnv

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.registry import ENV_WRAPPERS
from rlinf.envs.actions import ACTION_FORMATS, ActionFormat, Chain
from rlinf.envs.actions.formats import accepted, expect_size
from rlinf.envs.actions.simulators import SIMULATORS
from rlinf.envs.spaces import Vector
from rlinf.envs.wrappers.action_format import FormatActions
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.images import Augmentation, AugmentImages, ResizeImages
from rlinf.envs.wrappers.latency import Latency
from rlinf.envs.wrappers.rewards import ShapedReward


def _missing(place: str, why: str) -> ConfigError:
    return ConfigError(place, f"missing, and {why}", f"Name one of {', '.join(ACTION_FORMATS.names())}, or give a list of them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFormatting:
    """Actions as a model writes them, converted to the simulator's."""

    training_only: ClassVar[bool] = False

    format: str | tuple[Mapping[str, Any], ...] | None = None
    """A registered action format, such as `libero`, or a list of them with their parameters, one after the other:
    `[{type: unscale, low: […], high: […]}, {type: gripper, source: unit_open, target: sign_closed}]`. null: that of `env_type`, for
    libero, robosuite, maniskill, metaworld, calvin and frankasim, all of a model's seven numbers."""

    def __post_init__(self) -> None:
        if self.format is not None:
            self._built()

    def taken_size(self, simulator: int, place: str) -> int:
        """How many numbers the model's actions have; see `rlinf.core.declarations.ConvertsActions`."""
        if self.format is None:  # refused by `expect_simulator`
            return simulator
        # Sizes follow from no bound, of which nothing is known yet.
        low, high = accepted(self._built(), -np.ones(simulator), np.ones(simulator), f"{place}.format")
        rest = np.clip(np.zeros((1, len(low)), np.float32), low, high).astype(np.float32)
        expect_size(self._built(), rest, simulator, f"{place}.format")
        return len(low)

    def for_simulator(self, env_type: str) -> ActionFormatting:
        """With the simulator's own format where none is given; see `rlinf.core.declarations.MadeForSimulators`."""
        return replace(self, format=SIMULATORS.get(env_type.casefold())) if self.format is None else self

    def expect_simulator(self, env_type: str, place: str) -> None:
        """Refuses the format of another simulator, whose gripper opens where this one closes; see `MadeForSimulators`."""
        if self.format is None:
            raise _missing(f"{place}.format", f"'{env_type}' has none of its own")
        wanted = SIMULATORS.get(env_type.casefold())
        if isinstance(self.format, str) and self.format in SIMULATORS.values() and wanted not in (None, self.format):
            problem = f"'{self.format}' makes actions of another simulator than '{env_type}', which takes those of '{wanted}'"
            raise ConfigError(f"{place}.format", problem, f"Use {wanted}, or describe the conversion as a list.")

    def wrap(self, env: Vector, name: str) -> Vector:
        return EnforceContract(FormatActions(env, self._built()))

    def _built(self) -> ActionFormat:
        if self.format is None:
            raise _missing("format", "it follows from env_type in a run alone")
        if isinstance(self.format, str):
            return cast("ActionFormat", ACTION_FORMATS.build(self.format, {}, place="format"))
        parts: list[ActionFormat] = []
        for at, part in enumerate(self.format):
            place = f"format[{at}]"
            if "type" not in part:
                raise ConfigError(f"{place}.type", "missing", f"Action formats: {', '.join(ACTION_FORMATS.names())}.")
            params = {key: value for key, value in part.items() if key != "type"}
            parts.append(ACTION_FORMATS.build(part["type"], params, place=place))
        return Chain(tuple(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Actions that take effect later than they were decided, as on a real robot; see `Latency`."""

    training_only: ClassVar[bool] = False

    steps: int | tuple[int, int]
    """Control steps until an action arrives; of two numbers the least and the most, between which it is drawn for each step."""
    meanwhile: Literal["hold", "idle"] = "hold"
    """What is executed while no newer action has arrived: the last one, or the idle one."""
    idle: tuple[float, ...] | None = None
    """The idle action; null: zero, or the nearest to it within the bounds."""

    def __post_init__(self) -> None:
        least, most = (self.steps, self.steps) if isinstance(self.steps, int) else self.steps
        if not 0 <= least <= most:
            raise ConfigError("steps", f"expected 0 ≤ least ≤ most, found {self.steps}", "Give a number, or a pair.")

    def wrap(self, env: Vector, name: str) -> Vector:
        return EnforceContract(Latency(env, steps=self.steps, meanwhile=self.meanwhile, idle=self.idle))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardShaping:
    """Rewards that are scaled, relative, or charge for time; an evaluation reports the task's own. See `ShapedReward`."""

    training_only: ClassVar[bool] = True

    reward_coef: float = 1.0
    """The factor."""
    use_rel_reward: bool = False
    """Give by how much it changed."""
    use_step_penalty: bool = False
    """Charge 1 for each step."""
    source: Literal["reward", "success"] = "reward"
    """What is scaled: the simulator's reward, or 1 for each step to a solved state."""

    def __post_init__(self) -> None:
        if not self.reward_coef and not self.use_step_penalty:
            raise ConfigError("reward_coef", "0 makes every reward 0, which teaches nothing", "Give another factor.")

    def wrap(self, env: Vector, name: str) -> Vector:
        return ShapedReward(
            env,
            reward_coef=self.reward_coef,
            use_rel_reward=self.use_rel_reward,
            use_step_penalty=self.use_step_penalty,
            source=self.source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResizing:
    """Images in the size that a policy wants: the middle of each, resized with antialiasing."""

    training_only: ClassVar[bool] = False

    size: tuple[int, int]
    """Height and width."""
    center_crop: float = 1.0
    """The part of the area that is kept."""

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ConfigError("size", f"expected numbers from 1, found {list(self.size)}", "Give for instance [224, 224].")
        expect_range("center_crop", self.center_crop, 0.0, 1.0, open_low=True, remedy="It is a part of the area, such as 0.9.")

    def wrap(self, env: Vector, name: str) -> Vector:
        return ResizeImages(env, self.size, center_crop=self.center_crop)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAugmentation(Augmentation):
    """Random changes of training images, drawn from the episode's seed and the step; an evaluation shows images as they are."""

    training_only: ClassVar[bool] = True

    def wrap(self, env: Vector, name: str) -> Vector:
        return EnforceContract(AugmentImages(env, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomWrapper:
    """A wrapper of yours: a `gymnasium.vector.VectorWrapper`, or any function from an environment to an environment.

    `type: my_module:MyWrapper` is enough.
    """

    wrapper: str
    """`module:attr` of the class or function, or the name under which it was registered; it is called with the environment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its other arguments."""
    training_only: bool = False
    """Whether an evaluation leaves it out."""

    def check(self, place: str) -> None:
        """Imports it and refuses what can't be called so; calls nothing.

        Raises:
            ConfigError: as said, or there is nothing at that place.
        """
        made = self._made(place)
        try:
            inspect.signature(made).bind(None, **self.kwargs)
        except TypeError as error:
            problem = f"'{self.wrapper}' can't be called with an environment and them: {error}"
            raise ConfigError(f"{place}.kwargs", problem, "Mend kwargs.") from error
        except ValueError:
            return  # something compiled, of which Python knows no signature

    def wrap(self, env: Vector, name: str) -> Vector:
        """The environment in the wrapper, which must keep the contract: a wrong number is refused where it comes about."""
        self.check("custom")
        wrapped = self._made("custom")(env, **self.kwargs)
        if not isinstance(wrapped, VectorEnv):
            found = type(wrapped).__name__
            raise ConfigError("custom", f"expected '{self.wrapper}' to return a gymnasium.vector.VectorEnv, found {found}")
        return EnforceContract(cast("Vector", wrapped))

    def _made(self, place: str) -> Callable[..., Any]:
        made: Any = ENV_WRAPPERS.get(self.wrapper, place=f"{place}.type")
        if not callable(made):
            raise ConfigError(f"{place}.type", f"expected a class or a function at '{self.wrapper}', found {made!r}")
        return cast("Callable[..., Any]", made)
