"""What adapters to simulators have in common: one simulation in their words, one environment in ours."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.core.installing import is_there
from rlinf.envs.assembly import assemble_filmed
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.video import Frame

Observation = dict[str, Any]
"""By embodied key, as `observation_space` announces it."""
TEXT_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a control step led to."""

    observation: Observation
    reward: float
    success: bool
    """Whether the task is solved in this state."""
    terminated: bool
    """Whether the task itself ended here, by success or by failure."""
    truncated: bool = False
    """Whether something other than the task ended the episode, such as an operator."""


class Simulation(Protocol):
    """One simulation (or one robot), translated into this package's words, but without its bookkeeping."""

    observation_space: Any
    action_space: Any

    def reset(self, seed: int, options: Mapping[str, Any]) -> Observation:
        """Starts an episode; the state is a function of `seed` and of the options `task` and `init_id`, where given."""
        ...

    def step(self, action: NDArray[Any]) -> Outcome:
        """One control step."""
        ...

    def close(self) -> None:
        """Frees it."""
        ...


def adapt(
    build: Callable[[], Simulation],
    num_envs: int,
    max_episode_steps: int,
    ignore_terminations: bool,
    render: bool,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> VectorEnv[Any, Any, Any]:
    """Simulations as the vector environment that the contract asks for.

    Args:
        build: makes one simulation.
        num_envs: how many.
        max_episode_steps: steps after which an episode is truncated.
        ignore_terminations: an episode goes on after it terminated.
        render: videos show `main_images`.
        metadata: `reset_options` and `waived`, as the contract knows them.
    """
    return assemble_filmed(
        lambda: _AdaptedTask(build(), ignore_terminations, metadata),
        num_envs,
        max_episode_steps=max_episode_steps,
        frame=_AdaptedTask.frame if render else None,
        schematic=None,
    )


class _AdaptedTask(gymnasium.Env[Observation, Any]):
    def __init__(self, simulation: Simulation, ignore_terminations: bool, metadata: Mapping[str, Any]) -> None:
        self.metadata = dict(metadata)
        self.simulation = simulation
        self.observation_space = simulation.observation_space
        self.action_space = simulation.action_space
        self._seen: Frame | None = None
        self._terminates = not ignore_terminations

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        observation = self.simulation.reset(int(seed or 0), options or {})
        self._seen = observation.get("main_images")
        return observation, {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        end = self.simulation.step(np.asarray(action))
        self._seen = end.observation.get("main_images")
        terminated = end.terminated and self._terminates
        return end.observation, end.reward, terminated, end.truncated, {"success": end.success}

    def frame(self) -> Frame:
        """The main image that was seen last."""
        if self._seen is None:
            raise ConfigError("env.render", "this environment has no images to show", "Make it with render=False.")
        return self._seen

    def close(self) -> None:
        self.simulation.close()


def observation_space(
    *,
    states: int,
    main: tuple[int, ...] | None = None,
    wrist: tuple[int, ...] | None = None,
    extra: tuple[int, ...] | None = None,
    text: bool = True,
    longest_text: int = TEXT_LENGTH,
) -> Any:
    """A Dict space by embodied key.

    Args:
        states: how many numbers; 0 for none.
        main: shape of `main_images`, `[H, W, 3]`.
        wrist: shape of `wrist_images`, `[H, W, 3]` or `[V, H, W, 3]`.
        extra: shape of `extra_view_images`, `[V, H, W, 3]`.
        text: whether the task is told in words.
        longest_text: characters of these.
    """
    spaces: dict[str, Any] = {}
    for key, shape in (("main_images", main), ("wrist_images", wrist), ("extra_view_images", extra)):
        if shape is not None:
            spaces[key] = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)
    if states:
        spaces["states"] = gymnasium.spaces.Box(-np.inf, np.inf, (states,), np.float32)
    if text:
        spaces["task_descriptions"] = TextArray(longest_text)
    return gymnasium.spaces.Dict(spaces)


def vector(*parts: Any) -> NDArray[np.float32]:
    """All parts, one after the other, as `states` `[D]`."""
    return np.concatenate([np.asarray(part, np.float32).reshape(-1) for part in parts])


def picture(pixels: Any) -> NDArray[np.uint8]:
    """An image `[..., H, W, C]` of which the colours are kept, as a copy `[..., H, W, 3]`."""
    return np.array(np.asarray(pixels)[..., :3], np.uint8)


def numbers(*spaces: Any) -> int:
    """How many numbers an element of each of these spaces has, in all."""
    return sum(math.prod(space.shape) for space in spaces)


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """NumPy's global generator, from which some simulators draw, seeded for a while and then as it was."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


def require_packages(*modules: str, place: str, how: str) -> None:
    """Refuses early what would fail late, for packages that no extra can install.

    Raises:
        MissingExtra: a module is not installed; the message says `how` to get it.
    """
    for module in modules:
        if not is_there(module):
            raise MissingExtra(place, f"the module '{module}' is not installed", how)


def require_folder(folder: str, place: str, remedy: str, *inside: str) -> Path:
    """The folder, which holds everything in `inside`.

    Raises:
        ConfigError: it doesn't exist, or one of them is missing.
    """
    path = Path(folder).expanduser()
    for wanted in (path, *(path / name for name in inside)):
        if not wanted.exists():
            raise ConfigError(place, f"'{wanted}' doesn't exist", remedy)
    return path


def refuse_many(num_envs: int, why: str) -> None:
    """Refuses more than one environment in this process."""
    if num_envs != 1:
        raise ConfigError("env", f"{why}, found num_envs={num_envs}", "Use 1 here, and one process (env server) for each.")
