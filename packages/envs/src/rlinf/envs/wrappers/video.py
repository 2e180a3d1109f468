"""Videos of episodes, from the simulator's renderer or drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.registry import require_modules
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, Step, reset_rows, unmasked

if TYPE_CHECKING:
    from rlinf.envs.wrappers._video_file import Caption, VideoFile

Frame = NDArray[np.uint8]
"""`[H, W, 3]`."""
_TILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """What there is to see of one environment at one moment."""

    index: int
    """Which environment of the vector."""
    states: NDArray[np.float32]
    """`[D]`, its observation."""
    rewards: Sequence[float]
    """The rewards of its episode so far, one for each step."""
    success: bool
    """Whether the task is solved now."""
    description: str = ""
    """The task in words; "" if the observations don't say."""

    @property
    def caption(self) -> Caption:
        """Step; reward of the step and return so far; outcome; task."""
        worth = f"reward {self.rewards[-1]:.2f}, return {sum(self.rewards):.2f}" if self.rewards else ""
        return f"step {len(self.rewards)}", worth, "success" if self.success else "", self.description


Camera = Callable[[Shot], Frame]
"""Makes a frame of an environment; all frames of a camera have one size."""


class RecordVideo(Wrapper):
    """Shows environments as frames, and records episodes as mp4 files.

    `reset(options={"record": "path/to/file.mp4", "tiles": 9})` starts a recording of the first environments, side by side. A tile
    stands still when its episode has ended; the file is complete when all tiles have, or at the next reset of all environments,
    or at `close`. Until then it has the suffix `.part.mp4`.

    Args:
        env: an environment whose `infos` hold `success`; a camera that draws from numbers needs the observation `states`.
        camera: makes the frames.
        fps: frames a second; a control step is a frame.
        tiles: how many environments are shown at most, where the reset doesn't say.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any], camera: Camera, *, fps: int = 20, tiles: int = _TILES) -> None:
        require_modules("PIL", "imageio", "imageio_ffmpeg", place="env.render", extra="rlinf-envs[video]")
        super().__init__(env)
        # Or an `EnforceContract` outside of this would refuse the two options.
        self.metadata = {**env.metadata, "wrapper_options": (*env.metadata.get("wrapper_options", ()), "record", "tiles")}
        self._camera = camera
        self._fps = fps
        self._tiles = tiles
        self._descriptions: NDArray[np.str_] | None = None
        self._states: NDArray[np.float32] | None = None
        self._rewards: list[list[float]] = [[] for _ in range(env.num_envs)]
        self._success = np.zeros(env.num_envs, np.bool_)
        self._video_file: VideoFile | None = None
        self._running: list[int] = []

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Starts episodes, and a recording if `options["record"]` names a file; `options["tiles"]` says how many it shows.

        Raises:
            ConfigError: `tiles` is less than 1.
            RLinfError: a recording, this one or the one that ends with this call, can't be written.
        """
        options = dict(options or {})
        path: str | Path | None = options.pop("record", None)
        tiles = int(options.pop("tiles", self._tiles))
        if tiles < 1:
            raise ConfigError("env.reset", f"option 'tiles' must be at least 1, found {tiles}", "Leave 'record' out for no video.")
        observations, infos = self.env.reset(seed=seed, options=options)
        fresh = reset_rows(options, self.num_envs)
        if path is not None or fresh.all():
            self._finish()
        for index in np.flatnonzero(fresh):
            self._rewards[index] = []
            self._success[index] = False
        self._look(observations)
        if path is not None:
            self._start(Path(path), min(self.num_envs, tiles))
        return observations, infos

    def step(self, actions: Any) -> Step:
        """One step of every environment, and one frame if a recording runs."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._look(observations)
        self._success = as_numpy(infos["success"]).copy()
        for row in np.flatnonzero(unmasked(actions, self.num_envs)[1]):
            self._rewards[row].append(float(rewards[row]))
        if self._video_file is not None:
            self._add_frame(self._running)
            # After the frame, so that the last one shows how the episode ended.
            self._running = [i for i in self._running if not (terminated[i] or truncated[i])]
            if not self._running:
                self._finish()
        return observations, rewards, terminated, truncated, infos

    @property
    def render_mode(self) -> str:
        """`render` gives arrays, whatever the simulator's own mode is."""
        return "rgb_array"

    def render(self) -> tuple[Frame, ...]:
        """A frame of each environment, `[H, W, 3]` uint8.

        Raises:
            RLinfError: there is nothing to see before the first reset.
        """
        return tuple(self._camera(self._shot(index)) for index in range(self.num_envs))

    def close(self, **kwargs: Any) -> None:
        """Completes a recording and frees the simulators.

        Raises:
            RLinfError: the recording can't be completed; the simulators are freed all the same.
        """
        try:
            self._finish()
        finally:
            super().close(**kwargs)

    def _look(self, observations: Mapping[str, Any]) -> None:
        # A camera of the simulator's own needs no `states`.
        self._states = as_numpy(observations.get("states", np.zeros((self.num_envs, 0), np.float32)))
        self._descriptions = observations.get("task_descriptions")

    def _shot(self, index: int) -> Shot:
        if self._states is None:
            raise RLinfError("env.render", "the environments were never reset", "Call env.reset(seed=…) first.")
        success = bool(self._success[index])
        task = "" if self._descriptions is None else str(self._descriptions[index])
        rewards = tuple(self._rewards[index])
        return Shot(index=index, states=self._states[index], rewards=rewards, success=success, description=task)

    def _start(self, path: Path, tiles: int) -> None:
        from rlinf.envs.wrappers._video_file import VideoFile

        self._video_file = VideoFile(path, tiles, self._fps)
        self._running = list(range(tiles))
        self._add_frame(self._running)

    def _add_frame(self, tiles: Sequence[int]) -> None:
        if self._video_file is not None:
            shots = [self._shot(index) for index in tiles]
            self._video_file.add({shot.index: (self._camera(shot), shot.caption) for shot in shots})

    def _finish(self) -> None:
        # Forgotten first: where closing it fails, the next reset must not try again.
        movie, self._video_file = self._video_file, None
        if movie is not None:
            movie.close()
