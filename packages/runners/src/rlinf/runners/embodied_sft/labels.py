"""Which recorded actions were good: a file beside a dataset, written by `apps/embodied/label_advantages.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import LearnsLabels, OfflineEpisode
from rlinf.core.errors import ConfigError

PLACE = "data.labels"


def learns_labels(model: object) -> bool:
    """Whether the policy of a configuration learns which actions were good."""
    return isinstance(model, LearnsLabels) and model.conditioned


def write_labels(path: Path, labels: Sequence[NDArray[np.bool_]], **columns: NDArray[Any]) -> None:
    """Writes labels, whole or not at all.

    Args:
        path: of the file, which ends in `.npz`; its folder is made if missing.
        labels: `[T]` of each episode, in the order of the dataset.
        columns: what else there is to know of each step, `[steps, *]`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    lengths: NDArray[Any] = np.array([len(each) for each in labels])
    arrays: Any = {"lengths": lengths, "labels": np.concatenate(labels).astype(np.bool_), **columns}
    with part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    part.replace(path)


def read_labels(path: str, episodes: int) -> list[NDArray[np.bool_]]:
    """What `write_labels` wrote, `[T]` of each episode.

    Raises:
        ConfigError: there is no such file, or it is of another dataset; the message has `data.labels`.
    """
    try:
        with np.load(Path(path).expanduser()) as file:
            lengths, labels = file["lengths"], file["labels"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        remedy = "Write them: apps/embodied/label_advantages.py, from the run of a value model."
        raise ConfigError(PLACE, f"expected labels at '{path}', which can't be read ({error})", remedy) from error
    if len(lengths) != episodes:
        raise _of_others(path, f"{len(lengths):,} episodes", f"{episodes:,}")
    return np.split(labels, np.cumsum(lengths)[:-1])


def labels_of(path: str, episodes: Sequence[OfflineEpisode]) -> list[NDArray[np.bool_]]:
    """The labels of episodes, which are all that a dataset has.

    Raises:
        ConfigError: as `read_labels`; or an episode has another length.
    """
    found = read_labels(path, len(episodes))
    for episode, labels in zip(episodes, found, strict=True):
        if len(labels) != len(episode):
            raise _of_others(path, f"{len(labels):,} steps of episode {episode.number}", f"{len(episode):,}")
    return found


def _of_others(path: str, theirs: str, ours: str) -> ConfigError:
    return ConfigError(PLACE, f"'{path}' has labels of {theirs}, and data of {ours}", "Label this dataset, or name that one.")
