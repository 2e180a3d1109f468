"""Minari's datasets, under their own names and those of D4RL. Importing this imports no reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlinf.core.data.offline import OfflineSource
from rlinf.core.errors import ConfigError
from rlinf.core.registry import require_modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Minari:
    """A dataset in Minari's format: from its own folder, from any folder, or under its old D4RL name.

    An observation becomes `states` `[T + 1, D]` float32; a Dict one is flattened by sorted key, as `rlinf.envs.gymnasium` does.
    """

    dataset: str
    """An id such as "D4RL/pen/human-v2", the path of a dataset's folder, or a D4RL name such as "pen-human-v1"."""
    download: bool = False
    """Fetch what is missing from Minari's server; without it, nothing goes over the network."""
    per_key: bool = False
    """Keep a Dict observation's own keys, unflattened, with their own types."""

    @property
    def minari_id(self) -> str:
        """The dataset as Minari calls it; a path stays as it is."""
        return minari_name(self.dataset)

    def check(self, place: str) -> None:
        """Refuses a missing reader and a D4RL name that Minari has no data for; reads no data.

        Raises:
            MissingExtra: Minari or h5py is not installed.
            ConfigError: no such dataset.
        """
        require_modules("minari", "h5py", place=place, extra="rlinf-envs[minari]")
        try:
            minari_name(self.dataset)
        except ConfigError as error:
            raise ConfigError(f"{place}.dataset", error.problem, error.remedy) from None

    def open(self) -> OfflineSource:
        """Opens the dataset.

        Raises:
            ConfigError: it is not on this machine and `download` is false, or it is damaged.
        """
        self.check("dataset")
        from rlinf.envs.offline._minari import MinariSource

        return MinariSource(self)


_LOCOMOTION: Final = ("halfcheetah", "hopper", "walker2d")
_QUALITIES: Final = ("medium", "expert")
_HANDS: Final = ("pen", "door", "hammer", "relocate")
_MAZES: Final = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
_POINTS: Final = ("open", "umaze", "medium", "large")
D4RL: Final[Mapping[str, str]] = {
    **{f"{robot}-{quality}": f"mujoco/{robot}/{quality}-v0" for robot in _LOCOMOTION for quality in _QUALITIES},
    **{f"{hand}-{kind}": f"D4RL/{hand}/{kind}-v2" for hand in _HANDS for kind in ("human", "cloned", "expert")},
    **{f"antmaze-{maze}": f"D4RL/antmaze/{maze}-v1" for maze in _MAZES},
    **{f"maze2d-{maze}": f"D4RL/pointmaze/{maze}-v2" for maze in _POINTS},
    **{f"maze2d-{maze}-dense": f"D4RL/pointmaze/{maze}-dense-v2" for maze in _POINTS},
    **{f"kitchen-{kind}": f"D4RL/kitchen/{kind}-v2" for kind in ("complete", "partial", "mixed")},
}
"""D4RL's names without their version, and where Minari has the like. Minari recorded them anew in today's simulators: same task
and same kind of policy, other numbers. Scores are not comparable with those on D4RL's own files."""


def minari_name(dataset: str) -> str:
    """Minari's id for a D4RL name; anything else stays as it is.

    Raises:
        ConfigError: a D4RL name for which Minari has nothing, such as halfcheetah-random-v2.
    """
    stem = re.sub(r"-v\d+$", "", dataset)
    if stem in D4RL:
        return D4RL[stem]
    # `ant` is a family of D4RL of which Minari has nothing; D4RL's names always end in a version.
    families = {name.partition("-")[0] for name in D4RL} | {"ant"}
    if "/" not in dataset and stem.partition("-")[0] in families and stem != dataset:
        family = stem.partition("-")[0]
        like = ", ".join(name for name in D4RL if name.startswith(f"{family}-")) or "none"
        raise ConfigError("dataset", f"Minari has no data for D4RL's '{dataset}'", f"Of that family it has: {like}.")
    return dataset
