"""Environments that nobody registered: a `gymnasium.Env` or a `gymnasium.vector.VectorEnv` of yours, as it is.

`env_type: my_module:MyEnv` is enough; `MyEnv` is a class, or a function that returns an environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.registry import ENVS
from rlinf.envs.assembly import assemble
from rlinf.envs.gymnasium.gymnasium import Gymnasium
from rlinf.envs.interop.from_gymnasium import from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env
from rlinf.envs.spaces import Vector, describe
from rlinf.envs.wrappers.video import RecordVideo

Env = gymnasium.Env[Any, Any]
# Any values: `check` only asks whether the arguments fit the signature.
_ASKED: dict[str, Any] = {"max_episode_steps": 1, "ignore_terminations": False, "render": False}
_KINDS = "a gymnasium.Env or gymnasium.vector.VectorEnv class, or a function that returns one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """An environment of yours under our contract: stepped one by one, reset by seed, truncated at a limit, with statistics.

    A function that takes `num_envs` returns a vector environment, another one a single environment; it is called once for each.
    What a function takes of `max_episode_steps`, `ignore_terminations` and `render` it is given, too. A vector environment that
    resets single environments only by itself is built with one, as often as needed, for then every reset can have its seed.
    """

    env: str
    """`module:attr` of the class or of the function, or the name under which it was registered."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the class or of the function."""
    success_key: str | None = None
    """The key of `info` that says whether the task is solved, such as "is_success"; None: the task knows no success."""
    obs_mode: Literal["state", "rgb"] = "state"
    """For a single environment: `rgb` adds `main_images` `[N, H, W, 3]`, what its own `render` shows."""

    @property
    def episode_steps(self) -> int | None:
        """0 for single environments: whatever limit one of them has, it announces none."""
        try:
            return None if _makes_vectors(self._made("env")) else 0
        except (RLinfError, ValueError):  # `check` says why; ValueError: compiled, of which Python knows no signature
            return None

    def check(self, place: str) -> None:
        """Imports the class or the function and refuses what is none, or doesn't take these arguments; builds nothing.

        Raises:
            ConfigError: as said, or there is nothing at that place.
        """
        made = self._made(place)
        try:
            inspect.signature(made).bind(**self._arguments(made, {"num_envs": 1, **_ASKED}))
        except TypeError as error:
            raise ConfigError(f"{place}.kwargs", f"'{self.env}' can't be called with them: {error}", "Mend kwargs.") from error
        except ValueError:
            return  # something compiled, of which Python knows no signature

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Vector:
        """`num_envs` environments behind one vector environment.

        Raises:
            ConfigError: it has no step limit and none is given, or it can't be asked to ignore terminations.
        """
        self.check("env")
        made = self._made("env")
        asked = {"max_episode_steps": max_episode_steps, "ignore_terminations": ignore_terminations, "render": render}
        if not _makes_vectors(made):
            return self._of_singles(made, num_envs, asked)
        if ignore_terminations and "ignore_terminations" not in _parameters(made):
            remedy = "Leave it false, or take a function with the parameter ignore_terminations."
            raise ConfigError("env.ignore_terminations", f"'{self.env}' makes vector environments, which stop there", remedy)
        env = self._of_vector(partial(self._call, made, asked), num_envs, max_episode_steps)
        return _with_video(env) if render and not _has_video(env) else env

    def describe(self, env: Vector) -> EnvSpec:
        return describe(env)

    def _of_singles(self, made: Callable[..., Any], num_envs: int, asked: Mapping[str, Any]) -> Vector:
        from rlinf.envs.gymnasium._gymnasium import make

        build: Callable[..., Any] = made if isinstance(made, type) else partial(self._single, made, asked)
        # Not registered: `gymnasium.make` takes a spec as it is.
        spec = GymnasiumSpec(id=self.env.rpartition(":")[2], entry_point=build)
        config = Gymnasium(env_id=self.env, kwargs=self.kwargs, success_key=self.success_key, obs_mode=self.obs_mode)
        return make(config, num_envs, **asked, spec=spec)

    def _of_vector(self, build: Callable[[int], Vector], num_envs: int, limit: int | None) -> Vector:
        env = build(num_envs)
        if env.metadata.get("autoreset_mode") is AutoresetMode.DISABLED and "max_episode_steps" in env.metadata:
            self._refuse_other(env, limit)
            return env  # one of ours already
        ours = from_vector_env(env, max_episode_steps=limit, success_key=self.success_key)
        if "partial_reset" not in ours.metadata["waived"]:
            return ours
        ours.close()
        limit = int(ours.metadata["max_episode_steps"])
        one = partial(from_vector_env, max_episode_steps=limit, success_key=self.success_key)
        return assemble([lambda: as_single_env(one(build(1)))] * num_envs, max_episode_steps=limit, camera=None)

    def _refuse_other(self, env: Vector, limit: int | None) -> None:
        found = env.metadata["max_episode_steps"]
        if limit is None or found == limit:
            return
        env.close()
        problem = f"expected environments of {limit} steps, and '{self.env}' makes some of {found}"
        raise ConfigError("env.max_episode_steps", problem, "Leave it out, or let the function use its parameter of this name.")

    def _single(self, made: Callable[..., Any], asked: Mapping[str, Any], **given: Any) -> Env:
        env = made(**{**self._arguments(made, asked), **given})
        if isinstance(env, VectorEnv):
            raise ConfigError("env.env_type", f"'{self.env}' returns a vector environment", "Give it the parameter num_envs.")
        if not isinstance(env, gymnasium.Env):
            raise ConfigError("env.env_type", f"expected '{self.env}' to return a gymnasium.Env, found {type(env).__name__}")
        return cast("Env", env)

    def _call(self, made: Callable[..., Any], asked: Mapping[str, Any], num_envs: int) -> Vector:
        env = made(**self._arguments(made, {"num_envs": num_envs, **asked}))
        if not isinstance(env, VectorEnv) or env.num_envs != num_envs:
            found = f"{env.num_envs} environments" if isinstance(env, VectorEnv) else f"{type(env).__name__}"
            raise ConfigError("env.env_type", f"expected '{self.env}' to make {num_envs} environments, found {found}")
        return cast("Vector", env)

    def _arguments(self, made: Callable[..., Any], asked: Mapping[str, Any]) -> dict[str, Any]:
        """What it is called with: of `asked` what it takes, but no None in place of a default of its own."""
        single = isinstance(made, type) and not _makes_vectors(made)
        takes: Mapping[str, inspect.Parameter] = {} if single else _parameters(made)
        known = {key: value for key, value in asked.items() if key in takes}
        kept = {key: value for key, value in known.items() if value is not None or takes[key].default is inspect.Parameter.empty}
        return {**kept, **self.kwargs}

    def _made(self, place: str) -> Callable[..., Any]:
        """The class or the function."""
        made: Any = ENVS.get(self.env, place=f"{place}.env_type")
        if not callable(made) or (isinstance(made, type) and not issubclass(made, gymnasium.Env | VectorEnv)):
            what = f"the class {made.__name__}" if isinstance(made, type) else repr(made)
            section = place.removesuffix(".init_params")  # of a run, whose env_type stands beside its init_params
            raise ConfigError(f"{section}.env_type", f"expected {_KINDS} at '{self.env}', found {what}")
        return cast("Callable[..., Any]", made)


def _makes_vectors(made: Callable[..., Any]) -> bool:
    return issubclass(made, VectorEnv) if isinstance(made, type) else "num_envs" in _parameters(made)


def _parameters(made: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(made).parameters


def _has_video(env: Vector) -> bool:
    inner: Any = env
    while isinstance(inner, VectorWrapper) and not isinstance(inner, RecordVideo):
        inner = cast("VectorWrapper[Any, Any, Any]", inner).env
    return isinstance(inner, RecordVideo)


def _with_video(env: Vector) -> Vector:
    from rlinf.envs.rendering._schematic import panel

    return RecordVideo(env, panel)
