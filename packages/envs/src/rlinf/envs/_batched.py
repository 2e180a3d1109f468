"""Batched simulations whose arrays are torch tensors on a device, as vector environments. Only imported when one is built.

arrays: torch   BatchEnv → TensorEnv                                   tensors stay on the device
arrays: numpy   BatchEnv → HostArrays → EpisodeStatistics → EnforceContract      the stack of every other environment
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError
from rlinf.envs.text_array import TextArray
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics, Infos, reset_rows
from rlinf.envs.wrappers.video import Camera, RecordVideo, Shot

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step of a batch led to; tensors on its device."""

    observation: dict[str, Tensor]
    """By embodied key, `[N, *]`: the state that the step reached, never that of a next episode."""
    reward: Tensor
    """`[N]`."""
    terminated: Tensor
    """`[N]` bool."""
    success: Tensor
    """`[N]` bool."""
    truncated: Tensor | None = None
    """`[N]` bool; None where the simulation has no limit of its own."""


class Batch(Protocol):
    """A batched simulation. What it returns may share memory with it: `BatchEnv` copies."""

    num_envs: int
    device: torch.device
    single_observation_space: gymnasium.spaces.Dict
    single_action_space: gymnasium.spaces.Box
    texts: NDArray[np.str_] | None
    """`[N]`, the tasks in words as they are now; None: there is no key `task_descriptions`."""

    def reset(self, index: list[int], seeds: list[int], numbers: list[int | None]) -> dict[str, Tensor]:
        """Starts episodes in some environments.

        Args:
            index: which ones.
            seeds: one for each of these.
            numbers: of an initial state, one for each of these; None everywhere but in an environment that has its own.

        Returns:
            The observations of all N.
        """
        ...

    def step(self, actions: Tensor) -> Outcome:
        """One step of all N environments; resets nothing."""
        ...

    def close(self) -> None:
        """Frees the simulation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch becomes an environment."""

    max_episode_steps: int
    """Steps after which an episode is truncated."""
    ignore_terminations: bool
    """Never say that an episode terminated."""
    arrays: Literal["numpy", "torch"] = "numpy"
    """What observations are."""
    waived: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the environment can't keep of the contract, and why."""
    reset_options: tuple[str, ...] = ()
    """`init_id`, if there are initial states of its own."""
    knows_success: bool = True
    """Whether `Outcome.success` means anything."""


def assemble_batch(batch: Batch, options: BatchOptions, *, render: bool, camera: Camera | None = None) -> VectorEnv[Any, Any, Any]:
    """The whole stack over a batch; see the head of this file.

    Args:
        batch: the simulation.
        options: how it becomes an environment.
        render: `render` and videos work; they show what `camera` sees, else `main_images`, else a panel of numbers.
        camera: the simulation's own; None if it has none.

    Raises:
        ConfigError: videos of tensors.
    """
    base = BatchEnv(batch, options)
    host = base if options.arrays == "torch" else HostArrays(base)
    env: VectorEnv[Any, Any, Any] = EnforceContract(EpisodeStatistics(host, options.max_episode_steps))
    if not render:
        return env
    if options.arrays == "torch":
        raise ConfigError("env.arrays", "videos are made of NumPy arrays", "Use arrays: numpy where videos are recorded.")
    if camera is None:
        from rlinf.envs.rendering._schematic import panel

        camera = base.render_frame if "main_images" in batch.single_observation_space.spaces else panel
    return RecordVideo(env, camera)


class BatchEnv(VectorEnv[Any, Any, Any]):
    """A batch in Gymnasium's words. It copies what the simulation gives, and a partial reset changes no other row."""

    # Gymnasium types these for one kind of space only.
    single_observation_space: Any
    single_action_space: Any
    observation_space: Any
    action_space: Any

    def __init__(self, batch: Batch, options: BatchOptions) -> None:
        self.metadata = {
            "autoreset_mode": AutoresetMode.DISABLED,
            "max_episode_steps": options.max_episode_steps,
            "waived": dict(options.waived),
            "reset_options": options.reset_options,
            "knows_success": options.knows_success,
            "device": str(batch.device),
        }
        self.batch = batch
        self.num_envs = batch.num_envs
        self._terminates = not options.ignore_terminations
        self._seen: dict[str, Tensor] = {}
        spaces = dict(batch.single_observation_space.spaces)
        if batch.texts is not None:
            # NumPy keeps four bytes for each character.
            spaces["task_descriptions"] = TextArray(batch.texts.dtype.itemsize // 4)
        self.single_observation_space = gymnasium.spaces.Dict(spaces)
        self.single_action_space = batch.single_action_space
        self.observation_space = batch_space(self.single_observation_space, batch.num_envs)
        self.action_space = batch_space(batch.single_action_space, batch.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        """Starts episodes; `seed` holds one for each environment, `options` what `EnforceContract` passes on."""
        options = options or {}
        mask = reset_rows(options, self.num_envs)
        numbers: list[Any] = options.get("init_id", [None] * self.num_envs)
        index = [int(i) for i in np.flatnonzero(mask)]
        fresh = self.batch.reset(index, [int(seed[i]) for i in index], [numbers[i] for i in index])
        chosen = torch.as_tensor(index, device=self.batch.device)
        for key, tensor in fresh.items():
            rows = tensor.clone() if len(index) == self.num_envs else self._seen[key].clone()
            rows[chosen] = tensor[chosen]
            self._seen[key] = rows
        return self._observation(), {}

    def step(self, actions: Any) -> tuple[dict[str, Any], Tensor, Tensor, Tensor, Infos]:
        outcome = self.batch.step(as_tensor(actions, self.batch.device))
        self._seen = {key: tensor.clone() for key, tensor in outcome.observation.items()}
        nothing = torch.zeros(self.num_envs, dtype=torch.bool, device=self.batch.device)
        terminated = outcome.terminated.clone() if self._terminates else nothing
        # A clone, as `terminated` may be `nothing` itself.
        truncated = nothing.clone() if outcome.truncated is None else outcome.truncated.clone()
        return self._observation(), outcome.reward.float().clone(), terminated, truncated, {"success": outcome.success.clone()}

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the simulation."""
        self.batch.close()

    def render_frame(self, shot: Shot) -> Any:
        """The main image that an environment saw last."""
        return as_numpy(self._seen["main_images"][shot.index])

    def _observation(self) -> dict[str, Any]:
        texts = {} if self.batch.texts is None else {"task_descriptions": self.batch.texts.copy()}
        return {**self._seen, **texts}


class HostArrays(Wrapper):
    """Every tensor as a NumPy array on the host: for what knows no torch."""

    def __init__(self, env: BatchEnv) -> None:
        super().__init__(env)
        # A device in the metadata promises tensors.
        self.metadata = {key: value for key, value in env.metadata.items() if key != "device"}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        return _on_host(self.env.reset(seed=seed, options=options))

    def step(self, actions: Any) -> Any:
        return _on_host(self.env.step(actions))


def space_of(observation: dict[str, Tensor]) -> gymnasium.spaces.Dict:
    """The space of one row of an observation: images of uint8, depths in metres, and what may be any number."""
    spaces: dict[str, Any] = {}
    for key, tensor in observation.items():
        shape = tuple(tensor.shape[1:])
        if tensor.dtype == torch.uint8:
            spaces[key] = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        else:
            spaces[key] = gymnasium.spaces.Box(0.0 if key.endswith("_depths") else -np.inf, np.inf, shape, np.float32)
    return gymnasium.spaces.Dict(spaces)


def as_tensor(array: Any, device: torch.device) -> Tensor:
    """An array or a tensor as float32 on a device."""
    return torch.as_tensor(array, dtype=torch.float32, device=device)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return as_numpy(value)
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in cast("Mapping[str, Any]", value).items()}
    return tuple(_on_host(item) for item in cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
