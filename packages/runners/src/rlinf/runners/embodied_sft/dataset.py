"""The dataset of a DAgger run: it begins with demonstrations, and grows by what the policy visits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from rlinf.core.data import EnvSpec
from rlinf.core.data.offline import GrowsDataset, OfflineConfig, OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.checkpoints.run_folder import run_folder
from rlinf.runners.embodied_sft.demonstrations import TEXTS
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig

DATASET: Final = "dataset"
"""In the folder of a run, holds its dataset."""


def dataset_folder(cfg: EmbodiedSFTConfig) -> Path:
    """Where the dataset of a run is."""
    return run_folder(cfg).path / DATASET


def grown(cfg: EmbodiedSFTConfig) -> OfflineConfig:
    """The dataset of a run as its policy sees it."""
    return growing(cfg).grown(str(dataset_folder(cfg)))


def growing(cfg: EmbodiedSFTConfig) -> GrowsDataset:
    """The demonstrations that it begins with.

    Raises:
        ConfigError: their format can't be added to; the rules of a run refuse that, too.
    """
    dataset = cfg.data.dataset
    if not isinstance(dataset, GrowsDataset):
        raise ConfigError("data.type", f"'{cfg.data.type}' can't be written, and dagger adds episodes to it", "Use lerobot.")
    return dataset


def begin_dataset(cfg: EmbodiedSFTConfig, checkpoint: Checkpoint | None, spec: EnvSpec) -> int:
    """Writes what a run begins or goes on with, and removes what was added after the checkpoint; returns how many episodes.

    Args:
        cfg: the run.
        checkpoint: what it goes on from; its run may have another folder, which is left as it is.
        spec: what the environment without wrappers shows, as which demonstrations are kept.

    Raises:
        ConfigError: the dataset that belongs to the checkpoint is gone, or the run began with other demonstrations.
    """
    dataset, folder = growing(cfg), dataset_folder(cfg)
    if checkpoint is None:
        given = dataset.as_recorded().open().episodes()
        return dataset.append(str(folder), _shown(given, spec), keep=0)
    _refuse_other_demonstrations(cfg, checkpoint)
    episodes, former = int(checkpoint.state["episodes"]), checkpoint.folder.parents[1] / DATASET
    if former.resolve() == folder.resolve():
        return dataset.append(str(folder), (), keep=episodes)
    written = dataset.grown(str(former)).as_recorded().open().episodes()
    # That run may have gone on after this checkpoint.
    return dataset.append(str(folder), islice(written, episodes), keep=0)


def _refuse_other_demonstrations(cfg: EmbodiedSFTConfig, checkpoint: Checkpoint) -> None:
    """Which episodes are held out follows from how many demonstrations there are."""
    before, now = checkpoint.state.get("demonstrations"), len(cfg.data.dataset.open())
    if before is None:
        problem = f"'{checkpoint.folder}' is of a run without dagger, which has no dataset of its own"
        raise ConfigError("runner.resume_dir", problem, "Start from its weights: runner.ckpt_path.")
    if before != now:
        problem = f"expected the {before} episodes with which the run of '{checkpoint.folder}' began, found {now}"
        raise ConfigError("data", problem, "Name the dataset of that run, or start anew without runner.resume_dir.")


def _shown(episodes: Iterator[OfflineEpisode], spec: EnvSpec) -> Iterator[OfflineEpisode]:
    """Episodes with what an environment shows and nothing else, in its types."""
    for episode in episodes:
        # An episode has its task once, in words, and not in every observation.
        seen = {key: np.asarray(episode.observation[key], of.dtype) for key, of in spec.observation.items() if key != TEXTS}
        yield replace(episode, observation=seen, action=np.asarray(episode.action, spec.action.dtype))
