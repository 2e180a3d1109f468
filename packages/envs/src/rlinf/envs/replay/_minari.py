"""A Minari dataset, written with Minari. Only imported when one is."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.envs.replay.sources import TEXTS

_ALONE: Final = ["states"]


def write_minari(folder: Path, episodes: Iterable[OfflineEpisode], spec: EnvSpec) -> int:
    """Writes `<folder>/data`; returns how many episodes there are.

    An observation of `states` alone is a `Box`, as of a Gymnasium environment; others are a `Dict`.

    Raises:
        ConfigError: an episode lacks its final observation, without which Minari has no transition behind its last step.
    """
    minari = importlib.import_module("minari")
    storage_of: Any = importlib.import_module("minari.dataset.minari_storage").MinariStorage
    keys = {key: of for key, of in spec.observation.items() if key != TEXTS}
    box = {key: _space(of) for key, of in keys.items()}
    alone = list(keys) == _ALONE
    folder.mkdir()
    storage = storage_of.new(
        (folder / "data").absolute(),  # Minari joins a relative path to itself
        observation_space=box["states"] if alone else spaces.Dict(box),
        action_space=_space(spec.action),
        env_spec=None,
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": _name(folder), "minari_version": minari.__version__})
    storage.update_episodes(_buffers(episodes, minari.data_collector.EpisodeBuffer, alone=alone, keys=list(keys)))
    return int(storage.total_episodes)


def _buffers(episodes: Iterable[OfflineEpisode], made: Any, *, alone: bool, keys: list[str]) -> Iterator[Any]:
    for number, episode in enumerate(episodes):
        if any(len(episode.observation[key]) != len(episode) + 1 for key in keys):
            problem = f"episode {episode.number} does not keep what was seen after its last action, which Minari's format does"
            raise ConfigError("--to", problem, "Choose --to lerobot or replay.")
        yield made(
            id=number,
            observations=episode.observation["states"] if alone else {key: episode.observation[key] for key in keys},
            actions=episode.action,
            rewards=episode.reward.tolist(),
            terminations=episode.terminated.tolist(),
            truncations=episode.truncated.tolist(),
            infos=None,
        )


def _space(spec: ArraySpec) -> spaces.Space[Any]:
    dtype: Any = np.dtype(spec.dtype)
    numbered = np.issubdtype(dtype, np.integer)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if numbered else (-np.inf, np.inf)
    return spaces.Box(low, high, spec.shape, dtype)


def _name(folder: Path) -> str:
    """An id as Minari wants it."""
    return f"{folder.name.removeprefix('.').removesuffix('.part')}-v0"
