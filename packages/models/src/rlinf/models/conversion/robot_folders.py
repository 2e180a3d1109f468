"""The environment that a public folder of a robot policy is for, as far as its weights depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.statistics import read_statistics

_SIZES: Final = {"actions": "action", "states": "state"}
_DATASETS: Final = ("unnorm_key", "embodiment_tag")


def robot_spec(folder: Path, params: Mapping[str, Any]) -> tuple[EnvSpec, dict[str, Any]]:
    """An environment with the sizes that `actions=…` and `states=…` say, or else the statistics of the folder.

    No weight depends on the size of a picture or on what follows from observations that are left out.

    Args:
        folder: of Hugging Face or LeRobot.
        params: of the model, and perhaps the two sizes.

    Returns:
        The environment, and the parameters of the model alone.

    Raises:
        ConfigError: nobody says how many actions there are.
    """
    known = _known_sizes(folder, next((str(params[key]) for key in _DATASETS if params.get(key)), None))
    sizes = {**known, **{name: int(params[name]) for name in _SIZES if name in params}}
    if "actions" not in sizes:
        problem = f"'{folder}' has no statistics that say how many numbers an action has"
        raise ConfigError("convert", problem, "Write it: actions=7, and states=8 if the policy sees states.")
    observation = {
        "main_images": ArraySpec(shape=(8, 8, 3), dtype="uint8"),
        "task_descriptions": ArraySpec(shape=(), dtype="str"),
    }
    if "states" in sizes:
        observation["states"] = ArraySpec(shape=(sizes["states"],), dtype="float32")
    action = ArraySpec(shape=(sizes["actions"],), dtype="float32")
    model = {key: value for key, value in params.items() if key not in _SIZES}
    return EnvSpec(observation=observation, action=action, max_episode_steps=1), model


def _known_sizes(folder: Path, dataset: str | None) -> dict[str, int]:
    try:
        found = read_statistics(folder, dataset=dataset)
    except (CheckpointError, ConfigError):
        return {}  # the model itself refuses a dataset that is not there
    sizes: dict[str, int] = {}
    for name, quantity in _SIZES.items():
        # The parts of a robot stand one after the other.
        parts = [named for key, named in found.items() if key.partition(".")[0] == quantity]
        if parts:
            sizes[name] = sum(next(len(array) for key, array in part.items() if key != "count") for part in parts)
    return sizes
