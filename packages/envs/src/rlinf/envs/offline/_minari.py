"""Minari itself. Only imported when a dataset is opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError, ShapeError, did_you_mean

if TYPE_CHECKING:
    from rlinf.core.data.offline import Array
    from rlinf.envs.offline.minari import Minari


class MinariSource:
    """An `OfflineSource` over one Minari dataset.

    Args:
        config: which one.
    """

    lacks: tuple[str, ...] = ()

    def __init__(self, config: Minari) -> None:
        self._data = _load(config)
        self._per_key = config.per_key

    @property
    def name(self) -> str:
        """Minari's id."""
        return str(self._data.spec.dataset_id)

    @property
    def env_id(self) -> str | None:
        """The Gymnasium id of the environment it was recorded in, where the dataset says so."""
        spec = self._data.env_spec
        return None if spec is None else str(spec.id)

    @property
    def spec(self) -> EnvSpec:
        """What the first episode shows; its longest has as many steps as the data say."""
        first = next(self.episodes())
        observation = {key: ArraySpec(shape=leaf.shape[1:], dtype=str(leaf.dtype)) for key, leaf in first.observation.items()}
        longest = max(self._lengths)
        space = self._data.action_space
        # Actions that are counted have none.
        bounds = {"low": getattr(space, "low", None), "high": getattr(space, "high", None)}
        action = ArraySpec(shape=first.action.shape[1:], dtype=str(first.action.dtype), **bounds)
        return EnvSpec(observation=observation, action=action, max_episode_steps=longest)

    @property
    def features(self) -> tuple[str, ...]:
        """The keys of its observations."""
        return tuple(next(self.episodes()).observation)

    def __len__(self) -> int:
        return int(self._data.total_episodes)

    def episode_lengths(self) -> list[int]:
        return self._lengths

    def episodes(self) -> Iterator[OfflineEpisode]:
        """See `OfflineSource`.

        Raises:
            ShapeError: an episode has not one observation more than actions.
        """
        for episode in self._data.iterate_episodes():
            yield self._episode(episode)

    @property
    def _lengths(self) -> list[int]:
        """Steps of each episode, by what describes the data."""
        return [int(data["total_steps"]) for data in self._data.storage.get_episode_metadata(self._data.episode_indices)]

    def _episode(self, episode: Any) -> OfflineEpisode:
        place = f"{self.name}[{int(episode.id)}]"
        observation = self._observation(episode.observations)
        if isinstance(episode.actions, (dict, tuple)):
            raise ShapeError(place, "actions are not one array", "Only Box and Discrete actions are read.")
        action, reward = cast("Array", episode.actions), np.asarray(episode.rewards, np.float32)
        terminated, truncated = np.array(episode.terminations, np.bool_), np.array(episode.truncations, np.bool_)
        lengths = {key: len(values) - 1 for key, values in observation.items()} | {"actions": len(action), "rewards": len(reward)}
        if len(set(lengths.values())) != 1 or not len(reward):
            raise ShapeError(place, f"expected one observation more than actions, and at least one action, found {lengths}")
        # Data that end without a flag were cut there.
        truncated[-1] |= not terminated[-1]
        number = int(episode.id)
        return OfflineEpisode(
            number=number, observation=observation, action=action, reward=reward, terminated=terminated, truncated=truncated
        )

    def _observation(self, observations: Any) -> dict[str, Array]:
        if self._per_key and isinstance(observations, Mapping):
            return dict(_leaves("", cast("Mapping[str, Any]", observations)))
        return {"states": _flatten(observations)}


def _load(config: Minari) -> Any:
    minari = importlib.import_module("minari")
    dataset = importlib.import_module("minari.dataset.minari_dataset")
    name = config.minari_id
    folder = Path(name).expanduser()
    try:
        # A folder that Minari does not manage, such as one of `rlinf replay convert`.
        if (folder / "data").is_dir():
            return dataset.MinariDataset(folder / "data")
        if not config.download:
            known = list(cast("dict[str, Any]", minari.list_local_datasets()))
            if name not in known:
                remedy = f"Set download: true, or fetch it: minari download {name}. {did_you_mean(name, known, label='Here')}"
                raise ConfigError("dataset", f"'{name}' is not on this machine", remedy)
        return minari.load_dataset(name, download=config.download)
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError("dataset", f"'{name}' can't be read: {error}", "Fetch it again.") from error


def _leaves(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for key in sorted(tree):
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(tree[key], Mapping):
            yield from _leaves(name, tree[key])
        else:
            yield name, np.asarray(tree[key])


def _flatten(observations: Any) -> Array:
    """`[T, *]`, or mappings of them, as `[T, D]` float32; a mapping by sorted key."""
    if isinstance(observations, Mapping):
        # By sorted key, as the environment `gymnasium` flattens what the same policy will see.
        tree = cast("Mapping[str, Any]", observations)
        return np.concatenate([_flatten(tree[key]) for key in sorted(tree)], axis=-1)
    array = np.asarray(observations, np.float32)
    return array.reshape(len(array), -1)
