"""A policy inside another one, by name, whose weights are frozen: what is known of it before it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.core.checkpoints.weight_files import find_weights
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import Checks, ChecksTasks
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import MODELS


def base_config(base: Mapping[str, Any], place: str) -> object:
    """The configuration of a base.

    Args:
        base: `model_type`, `ckpt_path` if it has weights, and hyper-parameters.
        place: the dotted path of `base`, for messages.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or wrong.
    """
    fields = {key: value for key, value in base.items() if key not in ("model_type", "ckpt_path")}
    return MODELS.build(str(base.get("model_type")), fields, place=place)


def check_base(base: Mapping[str, Any], place: str) -> None:
    """Refuses a base that can't be built here, or whose weights are not there.

    Raises:
        ConfigError: one of the two, or what the base refuses.
    """
    config, weights = base_config(base, place), base.get("ckpt_path")
    if isinstance(config, Checks):
        config.check(place)
    if weights is None:
        return
    try:
        find_weights(weights, place=f"{place}.ckpt_path")
    except CheckpointError as error:
        raise ConfigError(error.place, error.problem, error.remedy) from error


def check_base_tasks(base: Mapping[str, Any], texts: Sequence[str], place: str, spec: EnvSpec | None) -> None:
    """Refuses tasks that a base has no room for; see `rlinf.core.declarations.ChecksTasks`."""
    config = base_config(base, place)
    if isinstance(config, ChecksTasks):
        config.check_tasks(texts, place, spec)
