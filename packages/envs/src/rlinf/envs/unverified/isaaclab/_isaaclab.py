"""Isaac Lab itself. Only imported when an environment is built."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rlinf.core.errors import ConfigError, RLinfError, did_you_mean
from rlinf.core.random import keyed_seed
from rlinf.envs._batched import BatchOptions, Outcome, assemble_batch, space_of

if TYPE_CHECKING:
    from rlinf.envs.unverified.isaaclab.isaaclab import IsaacLab

_SEED_RANGE = 2**31
_ONE_CALL = "exact_resets is off: a state depends on the seeds of all environments that are reset by the same call"
_ONE_GENERATOR = "what a task draws for observations and steps comes from one generator for all environments"
_ALWAYS = {
    "instances": "Isaac Sim holds one simulation in a process",
    "partial_reset": _ONE_GENERATOR,
    "place": _ONE_GENERATOR,
}
_apps: dict[bool, Any] = {}


def make(config: IsaacLab, num_envs: int, limit: int | None, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    _launch(config)
    for module in config.task_modules:
        importlib.import_module(module)
    parse: Any = importlib.import_module("isaaclab_tasks.utils").parse_env_cfg
    cfg = parse(config.task_id, device=config.device, num_envs=num_envs)
    for path, value in config.overrides.items():
        _override(cfg, path, value)
    if limit is not None:
        # Isaac Lab measures an episode in seconds of simulation.
        cfg.episode_length_s = limit * cfg.decimation * cfg.sim.dt
    simulation: Any = gymnasium.make(config.task_id, cfg=cfg, disable_env_checker=True).unwrapped
    waived = _ALWAYS if config.exact_resets else {**_ALWAYS, "seeds": _ONE_CALL}
    options = BatchOptions(
        max_episode_steps=limit or int(simulation.max_episode_length),
        ignore_terminations=ignore_terminations,
        arrays=config.arrays,
        waived=waived,
        knows_success=config.success is not None,
    )
    return assemble_batch(Simulation(simulation, config), options, render=render)


class Simulation:
    """An Isaac Lab environment whose `step` resets nothing.

    Its `step` ends with: terminations and rewards, `_reset_idx` of what has ended, commands and interval events, observations.
    Holding `_reset_idx` back makes these the observations of the state that was reached; each term is still computed once in a
    step, so that histories and noise are as they were.

    Args:
        env: a `ManagerBasedRLEnv` or a `DirectRLEnv`.
        config: what is observed.
    """

    def __init__(self, env: Any, config: IsaacLab) -> None:
        self._env = env
        self._config = config
        self._managed = isinstance(env, importlib.import_module("isaaclab.envs").ManagerBasedRLEnv)
        self.texts = None if config.task_description is None else np.array([config.task_description] * env.num_envs)
        self._stepping = self._held = False
        self._reset_idx = env._reset_idx
        env._reset_idx = self._reset_unless_stepping
        self.num_envs: int = env.num_envs
        self.device = torch.device(env.device)
        bound, shape = config.action_bound, tuple(env.single_action_space.shape)
        self.single_action_space: Any = gymnasium.spaces.Box(-bound, bound, shape, np.float32)
        self._randomness = _Randomness(self.device)
        with self._randomness.swapped_in(keep=False):
            observation, _ = env.reset(seed=0)
        self.single_observation_space = space_of(self._embodied(observation))

    def reset(self, index: list[int], seeds: list[int], numbers: list[int | None]) -> dict[str, torch.Tensor]:
        calls = [([i], seed) for i, seed in zip(index, seeds, strict=True)]
        if not self._config.exact_resets:
            calls = [(index, keyed_seed(0, "isaaclab", *seeds) % _SEED_RANGE)]
        whole = len(index) == self.num_envs
        observation: dict[str, torch.Tensor] = {}
        # A partial reset leaves the others' draws as they were; after a reset of all they follow from its seeds.
        with self._randomness.swapped_in(keep=whole):
            for chosen, seed in calls:
                # Each row from its own call, in which its noise was drawn with its seed.
                for key, tensor in self._reset(chosen, seed).items():
                    observation.setdefault(key, tensor.clone())[chosen] = tensor[chosen]
            if whole:
                self._env.seed(calls[0][1])
        return observation

    def step(self, actions: torch.Tensor) -> Outcome:
        """See `Batch`.

        Raises:
            RLinfError: the task resets in another way than by `_reset_idx`, so that its final observation is lost.
        """
        self._stepping, self._held = True, False
        try:
            with self._randomness.swapped_in(keep=True):
                observation, reward, terminated, truncated, extras = self._env.step(actions)
        finally:
            self._stepping = False
        if not self._held and bool((terminated | truncated).any()):
            problem = f"'{self._config.task_id}' ended an episode without calling _reset_idx, so its final observation is lost"
            raise RLinfError("env.step", problem, "This task needs an adapter of its own.")
        return Outcome(
            observation=self._embodied(observation),
            reward=reward,
            terminated=terminated.bool(),
            truncated=truncated.bool(),
            success=self._success(extras),
        )

    def close(self) -> None:
        """Closes the environment; the app stays until the process ends, as Isaac Sim can't be started twice."""
        self._env.close()

    def _reset_unless_stepping(self, env_ids: Any) -> None:
        if self._stepping:
            self._held = True
        else:
            self._reset_idx(env_ids)

    def _reset(self, index: list[int], seed: int) -> dict[str, torch.Tensor]:
        where = torch.as_tensor(index, device=self.device)
        if self._managed:
            observation, _ = self._env.reset(seed=seed, env_ids=where)
        else:
            # A direct environment's `reset` is for all; these are its parts.
            self._env.seed(seed)
            self._env._reset_idx(where)
            self._env.scene.write_data_to_sim()
            self._env.sim.forward()
            observation = self._env._get_observations()
        return self._embodied(observation)

    def _success(self, extras: Mapping[str, Any]) -> torch.Tensor:
        name = self._config.success
        if name is None:
            return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        if self._managed:
            manager = self._env.termination_manager
            if name not in manager.active_terms:
                raise ConfigError("env.success", f"no termination is named '{name}'", did_you_mean(name, manager.active_terms))
            return manager.get_term(name).bool()
        if name not in extras:
            raise ConfigError("env.success", f"the task's extras say nothing of '{name}'", did_you_mean(name, sorted(extras)))
        return extras[name].bool()

    def _embodied(self, observation: Any) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for key, path in self._config.observation.items():
            value = _at(observation, path)
            if key == "states":
                found[key] = _vector(value).float()
            elif isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
                found[key] = value[..., :3]
            else:
                what = f"'{path}' must be an image of uint8, found {getattr(value, 'dtype', 'several terms')}"
                raise ConfigError(f"env.observation.{key}", what, "Set the term's params: normalize to false.")
        return found


class _Randomness:
    """The global generators as one simulation sees them, so that it and the rest of the process don't disturb each other.

    Isaac Lab draws from the generators of `random`, NumPy and torch.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = [device] if device.type == "cuda" else []
        self._own = self._read()

    @contextlib.contextmanager
    def swapped_in(self, *, keep: bool) -> Generator[None]:
        """Inside, draws go on where this simulation's last ones ended; `keep` says whether these count as such."""
        outer = self._read()
        self._write(self._own)
        try:
            yield
        finally:
            if keep:
                self._own = self._read()
            self._write(outer)

    def _read(self) -> tuple[Any, ...]:
        cuda = [torch.cuda.get_rng_state(device) for device in self._cuda]
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda

    def _write(self, states: tuple[Any, ...]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for device, state in zip(self._cuda, states[3], strict=True):
            torch.cuda.set_rng_state(state, device)


def _launch(config: IsaacLab) -> None:
    """Starts the app before anything else of Isaac is imported; once in a process."""
    # An app with cameras also serves environments that have none.
    if config.enable_cameras in _apps or True in _apps:
        return
    if _apps:
        raise ConfigError("env.enable_cameras", "this process runs Isaac Sim without cameras already", "Use another process.")
    launcher: Any = importlib.import_module("isaaclab.app").AppLauncher
    _apps[config.enable_cameras] = launcher(headless=config.headless, enable_cameras=config.enable_cameras, device=config.device)


def _override(cfg: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        cfg = getattr(cfg, name, None)
    if not hasattr(cfg, last):
        raise ConfigError(f"env.overrides.{path}", "the task's configuration has no such field", "Check the path.")
    setattr(cfg, last, value)


def _at(observation: Any, path: str) -> Any:
    for name in path.split("."):
        held: Mapping[str, Any] = cast("Mapping[str, Any]", observation) if isinstance(observation, Mapping) else {}
        if name not in held:
            remedy = did_you_mean(name, sorted(held), label="There are") + " A concatenated group is one vector."
            raise ConfigError("env.observation", f"there is no '{name}' in the observation '{path}'", remedy)
        observation = held[name]
    return observation


def _vector(value: Any) -> torch.Tensor:
    if isinstance(value, Mapping):
        return torch.cat([_vector(part) for part in cast("Mapping[str, Any]", value).values()], dim=-1)
    return value.flatten(start_dim=1)
