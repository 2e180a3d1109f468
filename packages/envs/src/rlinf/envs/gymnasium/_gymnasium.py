"""Gymnasium environments themselves, and the simulators behind them. Only imported when an environment is built."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError, MissingExtra, did_you_mean
from rlinf.envs.assembly import assemble_filmed, logger
from rlinf.envs.gymnasium.gymnasium import find_spec
from rlinf.envs.rendering.mujoco import can_render, require_rendering, use_rendering
from rlinf.envs.rendering.on_demand import ImagesOnDemand
from rlinf.envs.spaces import is_a
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.images import IMAGE_KEYS

if TYPE_CHECKING:
    from rlinf.envs.gymnasium.gymnasium import Gymnasium

Info = dict[str, Any]


def make(
    config: Gymnasium,
    num_envs: int,
    *,
    max_episode_steps: int | None,
    ignore_terminations: bool,
    render: bool,
    spec: EnvSpec | None = None,
) -> VectorEnv[Any, Any, Any]:
    """See `Gymnasium.make`; `spec` is what to make instead of what is registered under the id."""
    spec = _registered(config) if spec is None else spec
    env_id = spec.id
    limit = max_episode_steps or spec.max_episode_steps
    if limit is None:
        raise ConfigError("env", f"'{env_id}' has no step limit of its own", "Set max_episode_steps.")
    if (render or config.obs_mode == "rgb") and can_render():
        use_rendering("env.render")
    native = render and (config.obs_mode == "rgb" or _can_render(config, spec))
    try:
        return assemble_filmed(
            lambda: _Task(config, spec, ignore_terminations, native),
            num_envs,
            max_episode_steps=limit,
            frame=_Task.frame if native else None,
            schematic=env_id if render else None,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra("env.env_id", f"'{env_id}' lacks something: {error}") from error


def _registered(config: Gymnasium) -> EnvSpec:
    if config.module is not None:
        # gymnasium-robotics prints a notice about its old versions whenever it is imported.
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(config.module)
    return find_spec(config.env_id.rpartition(":")[2], "env.env_id")


class _Task(gymnasium.Env[dict[str, Any], Any]):
    """One environment in the project's words: observations by embodied key, `success`, an end that can be ignored.

    Args:
        config: which environment, and what is observed of it.
        spec: how Gymnasium makes it.
        ignore_terminations: never say that an episode terminated.
        native: frames are wanted, whether or not they are observed.
    """

    def __init__(self, config: Gymnasium, spec: EnvSpec, ignore_terminations: bool, native: bool) -> None:
        self.metadata = {"render_modes": [], "knows_success": config.success_key is not None}
        self._images = config.obs_mode == "rgb"
        self.env = _build(config, spec, "rgb_array" if native or self._images else None)
        self.action_space = self._announced("action_space")
        self._reader = _Reader(self._announced("observation_space"))
        self._viewer: Any = self._new_renderer(config) if native or self._images else None
        observed = dict(self._reader.spaces)
        if self._images:
            self.env.reset(seed=0)
            observed["main_images"] = gymnasium.spaces.Box(0, 255, self.frame().shape, np.uint8)
        self._frames = ImagesOnDemand(lambda: {"main_images": self.frame()})
        self.images_on_demand = self._frames if self._images and _draws_without_trace(spec) else None
        self.observation_space = gymnasium.spaces.Dict(observed)
        self._success_key = config.success_key
        self._terminates = not ignore_terminations

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        try:
            answer = self.env.reset(seed=seed)
        except TypeError as error:
            if "reset() got an unexpected keyword argument 'seed'" not in str(error):
                raise
            problem = f"{type(self.env.unwrapped).__name__}.reset takes no seed"
            raise ConfigError("env", problem, "Write it as Gymnasium does: reset(self, *, seed=None, options=None).") from error
        observation, _ = self._parts("reset", answer, "observation, info")
        return self._observe(observation), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, Info]:
        answer = self._parts("step", self.env.step(action), "observation, reward, terminated, truncated, info")
        observation, reward, terminated, truncated, info = answer
        success = self._success_key is not None and self._success(info)
        ended = bool(terminated) and self._terminates
        if np.ndim(reward) or isinstance(reward, str | None):
            raise self._wrong("step", f"a number as its reward, found {_kind(reward)}")
        return self._observe(observation), float(reward), ended, bool(truncated), {"success": success}

    def frame(self) -> NDArray[np.uint8]:
        """What the environment's own `render` shows, `[H, W, 3]`."""
        return np.ascontiguousarray(self.env.render()) if self._viewer is None else self._viewer.frame()

    def close(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None
        self.env.close()

    def _parts(self, method: str, answer: object, expected: str) -> tuple[Any, ...]:
        """What a method returned, which in other versions of the API were fewer things."""
        parts = cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else None
        if parts is not None and len(parts) == expected.count(",") + 1:
            return parts
        found = f"one {type(cast('object', answer)).__name__}" if parts is None else f"{len(parts)} things"
        raise self._wrong(method, f"({expected}), found {found}", "Write it for Gymnasium 1; older environments are of Gym's API.")

    def _wrong(self, method: str, problem: str, remedy: str = "") -> ConfigError:
        return ConfigError("env", f"{type(self.env.unwrapped).__name__}.{method} is to return {problem}", remedy)

    def _announced(self, name: str) -> Any:
        """A space of the environment, which Gymnasium does not ask of it before it is used."""
        space = getattr(self.env, name, None)
        if not isinstance(space, gymnasium.Space):
            problem = f"expected {type(self.env.unwrapped).__name__}.{name} to be a space of Gymnasium, found {space!r:.60}"
            raise ConfigError("env", problem, "Set it in the class or in __init__.")
        return cast("Any", space)

    def _observe(self, observation: Any) -> dict[str, Any]:
        found = self._reader.read(observation)
        return found | self._frames.observe() if self._images else found

    def _success(self, info: Info) -> bool:
        if self._success_key not in info:
            known = f"Its info holds: {', '.join(sorted(info)) or 'nothing'}."
            raise ConfigError("env.success_key", f"the environment says nothing of '{self._success_key}'", known)
        return bool(info[self._success_key])

    def _new_renderer(self, config: Gymnasium) -> Any:
        """Makes MuJoCo's rendering cheap; None for an environment that something else draws."""
        renderer = _renderer(self.env)
        if renderer is None:
            return None
        require_rendering("env.obs_mode")
        from rlinf.envs.rendering._mujoco import EnvRenderer

        return EnvRenderer(self.env, renderer, config.look)


class _Reader:
    """Which parts of an observation have a name of ours, or are the only image, and how the rest of it is a vector.

    Args:
        space: any space that Gymnasium can flatten.

    Raises:
        ConfigError: there are several images that have no name of ours.
    """

    def __init__(self, space: Any) -> None:
        self._space = space
        self._named = is_a(space, gymnasium.spaces.Dict)
        parts: dict[str, Any] = dict(space.spaces) if self._named else {"": space}
        # By embodied key, the key of the part that becomes it.
        self._keys = {key: key for key in IMAGE_KEYS if key in parts and _is_view(parts[key])}
        images = [key for key, part in parts.items() if key not in self._keys and _is_image(part)]
        if len(images) + ("main_images" in self._keys) > 1:
            remedy = f"Call them {', '.join(IMAGE_KEYS)}, or wrap the environment so that one is left."
            raise ConfigError("env.observation", f"it has several images: {', '.join(images)}", remedy)
        if images:
            self._keys["main_images"] = images[0]
        if is_a(parts.get("task_descriptions"), gymnasium.spaces.Text):
            self._keys["task_descriptions"] = "task_descriptions"
        rest = sorted(parts.keys() - set(self._keys.values()))
        self._rest: Any = gymnasium.spaces.Dict({key: parts[key] for key in rest})
        self.spaces: dict[str, gymnasium.Space[Any]] = {}
        if self._rest.spaces:
            size = gymnasium.spaces.flatdim(self._rest)
            self.spaces["states"] = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        for key, own in self._keys.items():
            self.spaces[key] = TextArray(parts[own].max_length) if key == "task_descriptions" else parts[own]

    def read(self, observation: Any) -> dict[str, Any]:
        """An observation by embodied key.

        Raises:
            ConfigError: it has other parts or sizes than the space says; types of numbers may differ.
        """
        parts: dict[str, Any] = observation if self._named else {"": observation}
        found: dict[str, Any] = {}
        try:
            if self._rest.spaces:
                found["states"] = np.asarray(gymnasium.spaces.flatten(self._rest, parts), np.float32)
            found |= {key: parts[own] for key, own in self._keys.items()}
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._stray(observation) from error
        if any(np.shape(found[key]) != space.shape for key, space in self.spaces.items()):
            raise self._stray(observation)
        text = self.spaces.get("task_descriptions")
        # One that is too long would be cut off in silence.
        if text is not None and not text.contains(found["task_descriptions"]):
            raise self._stray(observation)
        return found

    def _stray(self, observation: Any) -> ConfigError:
        problem = f"expected one of {self._space}, found {_kind(observation)}"
        return ConfigError("env.observation", problem, "Let observation_space say what reset and step return.")


def _kind(value: Any) -> str:
    """What something is, with its shape if it is an array; each part of a dict, of which a text is told itself."""
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).items()
        told = ", ".join(f"{key}: {part!r}" if isinstance(part, str) else f"{key}: {_kind(part)}" for key, part in parts)
        return f"{{{told}}}"
    return type(value).__name__ + (f" of shape {np.shape(value)}" if is_a(value, np.ndarray) else "")


def _is_image(space: Any) -> bool:
    return is_a(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] == 3


def _build(config: Gymnasium, spec: EnvSpec, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    given: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if config.image_size is not None:
        given |= {"width": config.image_size, "height": config.image_size}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # -1 leaves the step limit to us; the checker costs time at each step.
            return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **given, **config.kwargs)
    except TypeError as error:
        # Which arguments a constructor takes is only known from its refusal.
        takes_not = [("width", "image_size", "width and height")]
        takes_not += [("render_mode", "obs_mode", "render_mode")] if config.obs_mode == "rgb" else []
        for argument, key, named in takes_not:
            if f"unexpected keyword argument '{argument}'" in str(error):
                raise ConfigError(f"env.{key}", f"'{spec.id}' takes no {named}", "Leave it out.") from error
        for argument in config.kwargs:
            if f"unexpected keyword argument '{argument}'" in str(error):
                remedy = did_you_mean(argument, _arguments(spec), label="Its arguments")
                raise ConfigError(f"env.kwargs.{argument}", f"'{spec.id}' takes no such argument", remedy) from error
        raise


def _arguments(spec: EnvSpec) -> list[str]:
    """What the constructor of an environment takes."""
    made: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    return [name for name in inspect.signature(made).parameters if name != "render_mode"]


def _renderer(env: Any) -> Any:
    """What MuJoCo draws the environment with; None for one that it doesn't."""
    # Whoever built an environment on MuJoCo has imported it by now; others should not have to.
    if "mujoco" not in sys.modules:
        return None
    from rlinf.envs.rendering._mujoco import find_renderer

    return find_renderer(env)


def _draws_without_trace(spec: EnvSpec) -> bool:
    """Whether it is known that an episode is the same if fewer of its frames are drawn.

    Of Gymnasium's own tasks on MuJoCo it is. Some of gymnasium-robotics put the goal into their simulation when they are drawn, and
    compute it anew.
    """
    own = isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.mujoco")
    return own and not spec.additional_wrappers


def _can_render(config: Gymnasium, spec: EnvSpec) -> bool:
    """Whether the environment gives a frame on this machine, asked by trying; what can be missing differs for each simulator."""
    if isinstance(spec.entry_point, type) and not _takes_render_mode(spec.entry_point):
        logger.info("%s takes no render_mode: its videos are drawn schematics", spec.id)
        return False
    try:
        env = _build(config, spec, "rgb_array")
        # MuJoCo ends the process when it fails to draw for the second time.
        if _renderer(env) is not None:
            require_rendering("env.render")
        env.reset(seed=0)
        frame = env.render()
        env.close()
    except Exception as error:  # noqa: BLE001 - what can be missing differs for each simulator
        logger.warning("%s can't render here (%s): its videos are drawn schematics", spec.id, _first_line(error))
        return False
    return isinstance(frame, np.ndarray)


def _takes_render_mode(made: type) -> bool:
    parameters = inspect.signature(made).parameters.values()
    return any(parameter.name == "render_mode" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _first_line(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _is_view(space: Any) -> bool:
    """Whether it is one image or, as `extra_view_images` are, several of one size."""
    kind = is_a(space, gymnasium.spaces.Box) and space.dtype == np.uint8
    return kind and len(space.shape) in (3, 4) and space.shape[-1] == 3
