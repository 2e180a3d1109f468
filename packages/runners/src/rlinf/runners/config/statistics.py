"""Whether the weights that a run starts from bring the statistics by which their policy acts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rlinf.core.checkpoints.weight_files import find_weights
from rlinf.core.declarations import HasStatistics
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.runners.checkpoints.public_folders import named_by, of_another_project, of_folder
from rlinf.runners.config.schema import ModelSection, ReferenceConfig, RunConfig, TrainingConfig
from rlinf.runners.config.sections import section_of

_MODEL: Final = "actor.model"


def lacking_statistics(cfg: RunConfig, actions: int | None) -> Iterator[ConfigError]:
    """What is wrong with the statistics of the folders that a run starts from or compares with.

    Weights of ours have theirs among them; a checkpoint of somebody else has files.

    Args:
        cfg: the run.
        actions: of how many the statistics must be; None where that is not known yet.
    """
    actor, reference = section_of(cfg, "actor", TrainingConfig), section_of(cfg, "reference", ReferenceConfig)
    if actor is None:
        return
    paths = {"runner.ckpt_path": cfg.runner.ckpt_path}
    if reference is not None and reference.ckpt_path is not None:
        paths["reference.ckpt_path"] = reference.ckpt_path
    for key, path in paths.items():
        fault = _fault(actor.model, key, path, actions)
        if fault is not None:
            yield fault


def _fault(model: ModelSection, key: str, path: str | None, actions: int | None) -> ConfigError | None:
    config = model.config
    if not isinstance(config, HasStatistics):
        return None
    try:
        if path is not None:
            folder = find_weights(path, place=key).parent
            if not of_another_project(folder):
                return None
            config = of_folder(model, folder, key).config
        if isinstance(config, HasStatistics):
            config.check_statistics(_MODEL, actions)
    except CheckpointError:
        return None  # that there are no weights is told with the other files
    except ConfigError as error:
        return error if path is None else named_by(key, error)
    return None
