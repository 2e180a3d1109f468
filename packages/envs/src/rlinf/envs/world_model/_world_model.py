"""Models and imagined worlds. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.core.registry import Registry, require_modules
from rlinf.envs._batched import BatchOptions, Outcome, assemble_batch, space_of
from rlinf.envs.world_model.world_model import ACTION_BOUNDS, TEXTS, load_frames

if TYPE_CHECKING:
    from rlinf.envs.world_model.world_model import Part, WorldModel

Tensors = dict[str, torch.Tensor]
_PARTS: Final[Registry[Any]] = Registry("part of a world model", "rlinf.world_models")


def make(config: WorldModel, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    imagination = Imagination(config, num_envs)
    options = BatchOptions(
        max_episode_steps=limit,
        ignore_terminations=ignore_terminations,
        arrays=config.arrays,
        reset_options=("init_id",),
    )
    return assemble_batch(imagination, options, render=render)


class Imagination:
    """N imagined worlds; see `Batch`.

    Args:
        config: what to build.
        num_envs: N.

    Raises:
        ConfigError: a part that can't be built.
    """

    def __init__(self, config: WorldModel, num_envs: int) -> None:
        self.num_envs = num_envs
        self.device = torch.device(config.device)
        self._config = config
        self._model: Any = _built(config.model, "env.model", self.device)
        self._judge: Any = _built(config.reward, "env.reward", self.device)
        frames = load_frames(config.frames, config.hidden, "env.frames")
        low, high = (frames.pop(key).astype(np.float32) for key in ACTION_BOUNDS)
        self._texts: NDArray[np.str_] | None = frames.pop(TEXTS, None)
        # Before the first reset all rows show frame 0: shapes and lengths are those of any.
        self.texts = None if self._texts is None else self._texts[np.zeros(num_envs, np.int64)]
        self._frames: Tensors = {key: torch.as_tensor(array, device=self.device) for key, array in frames.items()}
        self._count = len(next(iter(self._frames.values())))
        self._state: Tensors = {key: tensor[:1].expand(num_envs, *tensor.shape[1:]).clone() for key, tensor in self._frames.items()}
        self._frame, self._seed, self._step = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.single_observation_space = space_of(self._seen())
        self.single_action_space: Any = gymnasium.spaces.Box(low, high, low.shape, np.float32)

    def reset(self, index: list[int], seeds: list[int], numbers: list[int | None]) -> Tensors:
        """See `Batch`; the number of an initial state is that of a frame.

        Raises:
            ConfigError: there is no frame of that number.
        """
        wrong = [number for number in numbers if number is not None and number >= self._count]
        if wrong:
            what = f"there is no initial state {wrong[0]}"
            raise ConfigError("env.reset", what, f"There are {self._count} frames, counted from 0.")
        drawn = [keyed_seed(seed, "world_model/frame") % self._count for seed in seeds]
        chosen = [d if number is None else number for d, number in zip(drawn, numbers, strict=True)]
        self._frame[index], self._seed[index], self._step[index] = chosen, seeds, 0
        for key, tensor in self._frames.items():
            # The state may be an array of the model's own, which `predict` returned.
            self._state[key] = self._state[key].clone()
            self._state[key][index] = tensor[chosen]
        self.texts = None if self._texts is None else self._texts[self._frame]
        return self._seen()

    def step(self, actions: torch.Tensor) -> Outcome:
        """See `Batch`.

        Raises:
            ShapeError: a prediction has another shape or type than the frames.
            NonFiniteError: a prediction is not a number.
        """
        noise = [] if self._config.noise_size == 0 else [self._noise()]
        with torch.inference_mode():
            before = self._offered(self._state)
            action = self._offered({"": actions})[""]
            predicted = self._model.predict(before, action, *noise)
            # A key that `predict` leaves out stays as it was.
            self._state = self._state | self._accepted(predicted)
            verdict: Mapping[str, Any] = self._judge(before, action, self._offered(self._state))
        self._step += 1
        success = self._flags(verdict.get("success", np.zeros(self.num_envs, np.bool_)), "success")
        terminated = self._flags(verdict["terminated"], "terminated") if "terminated" in verdict else success
        reward = self._tensor(verdict["reward"], torch.float32)
        _expect_shape(reward, (self.num_envs,), "env.reward", "reward")
        return Outcome(observation=self._seen(), reward=reward, terminated=terminated, success=success)

    def close(self) -> None:
        """There is nothing to free."""

    def _seen(self) -> Tensors:
        return {key: tensor for key, tensor in self._state.items() if key not in self._config.hidden}

    def _noise(self) -> Any:
        size = self._config.noise_size
        rows = [
            keyed_generator(int(seed), "world_model/noise", int(step)).standard_normal(size, np.float32)
            for seed, step in zip(self._seed, self._step, strict=True)
        ]
        return self._offered({"": torch.as_tensor(np.stack(rows), device=self.device)})[""]

    def _offered(self, tensors: Tensors) -> dict[str, Any]:
        """What a part gets: tensors or arrays that it may keep or change."""
        copies = {key: tensor.clone() for key, tensor in tensors.items()}
        return {key: as_numpy(tensor) for key, tensor in copies.items()} if self._config.library == "numpy" else copies

    def _accepted(self, predicted: Mapping[str, Any]) -> Tensors:
        accepted: Tensors = {}
        for key, array in predicted.items():
            if key not in self._state:
                known = ", ".join(self._state)
                raise ShapeError("env.model", f"predict returned '{key}', which the frames don't have", f"They have: {known}.")
            tensor, former = self._tensor(array, None), self._state[key]
            _expect_shape(tensor, tuple(former.shape), "env.model", key)
            if tensor.dtype != former.dtype:
                problem = f"expected '{key}' of {former.dtype}, as in the frames, found {tensor.dtype}"
                raise ShapeError("env.model", problem, "Convert it in predict.")
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                row = int((~torch.isfinite(tensor)).reshape(self.num_envs, -1).any(dim=1).nonzero()[0])
                problem = f"'{key}' of environment {row} is not finite after {int(self._step[row]) + 1} steps"
                raise NonFiniteError("env.model", problem, "Shorten the horizon, or train the model on longer rollouts.")
            accepted[key] = tensor
        return accepted

    def _flags(self, array: Any, name: str) -> torch.Tensor:
        flags = self._tensor(array, torch.bool)
        _expect_shape(flags, (self.num_envs,), "env.reward", name)
        return flags

    def _tensor(self, array: Any, dtype: torch.dtype | None) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=self.device)


def _expect_shape(tensor: torch.Tensor, shape: tuple[int, ...], place: str, name: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(place, f"expected '{name}' of shape {list(shape)}, found {list(tensor.shape)}")


def _built(part: Part, place: str, device: torch.device) -> Any:
    item: Any = _PARTS.get(part.build, place=f"{place}.build")(**part.kwargs)
    if part.weights is not None:
        item.load_state_dict(_weights(part.weights, place))
    if isinstance(item, torch.nn.Module):
        item.to(device).eval().requires_grad_(False)
    return item


def _weights(path: str, place: str) -> Mapping[str, Any]:
    """A state dict; nothing in the file can run code."""
    if path.endswith(".safetensors"):
        require_modules("safetensors", place=f"{place}.weights", extra="rlinf-envs[world-model]")
        return importlib.import_module("safetensors.torch").load_file(path, device="cpu")
    return torch.load(path, map_location="cpu", weights_only=True)
