"""A suite: one policy under several protocols, each what a recipe measures with some keys changed.

spatial: {env.eval.init_params.suite: libero_spatial, env.eval.tasks: 10}
goal: {env.eval.init_params.suite: libero_goal, env.eval.tasks: 10}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import ConfigError

OPTION: Final = "--suite"
_REMEDY: Final = "Write a name, and below it the keys that it changes: {spatial: {env.eval.tasks: 10}}."


def read_suite(path: Path) -> dict[str, list[str]]:
    """For each entry of a suite its name and the overrides that it stands for, `key=value` with values in JSON.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    try:
        content: object = OmegaConf.to_container(OmegaConf.load(path.expanduser()))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(OPTION, f"'{path}' can't be read ({reason})", _REMEDY) from error
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(OPTION, f"expected entries by name in '{path}', found {content!r:.60}", _REMEDY)
    return {str(name): _overrides(f"{path}: {name}", entry) for name, entry in cast("Mapping[object, object]", content).items()}


def _overrides(place: str, entry: object) -> list[str]:
    if not isinstance(entry, Mapping) or not entry:
        raise ConfigError(place, f"expected keys with values, found {entry!r:.60}", _REMEDY)
    changes = flatten(cast("Mapping[str, Any]", entry))
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]
