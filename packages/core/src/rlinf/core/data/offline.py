"""Recorded episodes, whatever format they come from: what a dataset gives, and what can be registered as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from numpy.typing import NDArray

from rlinf.core.data.types import EnvSpec

Array = NDArray[Any]

ADVANTAGE_LABELS: Final = "advantage_labels"
"""Among the observations that a conditioned policy learns from: `[B]`, 1 where the action was good, 0 where it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineEpisode:
    """One recorded episode of T steps."""

    number: int
    """Its number in the dataset; of one that is in none yet, the seed of its reset."""
    observation: Mapping[str, Array]
    """By key, `[T + 1, *]`: what was seen before each action, and last what was seen after the last one. `[T, *]` in a format that
    does not keep the last (LeRobot). Images may lie in a file that is mapped into memory."""
    action: Array
    """`[T, *]`."""
    reward: Array
    """`[T]` float32."""
    terminated: Array
    """`[T]` bool: the task itself ended here."""
    truncated: Array
    """`[T]` bool: a limit cut the episode here. A recording that stops without either was cut: its last step is truncated."""
    task: str = ""
    """What was to be done, in words; "" where nobody said."""
    success: Array | None = None
    """`[T]` bool: whether the task was solved in the state that the action led to; None where that is not recorded."""
    intervened: Array | None = None
    """`[T]` bool: whether an expert acted in place of the policy; None where there was no policy, and so all actions count."""
    policy_action: Array | None = None
    """`[T, *]`: what the policy decided, and did where nobody intervened, where `action` is the expert's; None without a policy."""

    def __len__(self) -> int:
        return len(self.reward)


class OfflineSource(Protocol):
    """A dataset that was opened."""

    @property
    def name(self) -> str:
        """What it is called where it comes from."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """What was seen and done, as of an environment; `task_descriptions` is among the observations if episodes have a task."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """All that it records, by its own names, whether or not somebody sees it."""
        ...

    @property
    def lacks(self) -> tuple[str, ...]:
        """What it does not record of rewards and of the ends of episodes, by its own names; () if nothing is missing."""
        ...

    def __len__(self) -> int:
        """Episodes."""
        ...

    def episodes(self) -> Iterator[OfflineEpisode]:
        """All episodes in their order; each is read when it is asked for."""
        ...


@runtime_checkable
class KnowsLengths(Protocol):
    """A dataset that was opened and tells how long its episodes are before it reads them, so that a run knows what they take."""

    def episode_lengths(self) -> Sequence[int]:
        """Steps of each of its episodes, in their order."""
        ...


@runtime_checkable
class MixesExpert(Protocol):
    """A vector environment in which an expert can act in place of the policy, and which keeps its episodes."""

    def mix_expert(self, beta: float) -> None:
        """From now on the expert acts in a share `beta` of the steps, in [0, 1]."""
        ...

    def take_episodes(self) -> list[OfflineEpisode]:
        """The episodes that ended since the last call, with what the expert would have done in each step."""
        ...


@runtime_checkable
class OfflineConfig(Protocol):
    """A registered dataset: where it is and how it is read."""

    def check(self, place: str) -> None:
        """Refuses early what `open` would refuse late, such as a reader that is not installed."""
        ...

    def open(self) -> OfflineSource:
        """Reads what describes the data, and not yet the data."""
        ...


@runtime_checkable
class NamesFeatures(Protocol):
    """A dataset in which a user says which feature is what a policy sees."""

    @property
    def keys(self) -> Mapping[str, str | tuple[str, ...]]:
        """By the names that environments use."""
        ...


@runtime_checkable
class LearnsLabels(Protocol):
    """A model's configuration whose policy can learn which recorded actions were good (`ADVANTAGE_LABELS`), and act as those."""

    @property
    def conditioned(self) -> bool:
        """Whether it does, as it is configured."""
        ...


@runtime_checkable
class GrowsDataset(OfflineConfig, Protocol):
    """A registered dataset to which a run can add episodes, in a folder of the run; the dataset itself stays as it is."""

    def as_recorded(self) -> OfflineConfig:
        """The same dataset, with actions in the units of the simulator."""
        ...

    def grown(self, folder: str) -> GrowsDataset:
        """The dataset that `append` wrote, read as this one is."""
        ...

    def append(self, folder: str, episodes: Iterable[OfflineEpisode], *, keep: int) -> int:
        """Writes episodes behind the first `keep` of a folder, all or none; others behind those are removed.

        Args:
            folder: made if missing.
            episodes: of equal keys and shapes, actions in the units of the simulator.
            keep: episodes that are there; 0 for a new dataset.

        Returns:
            How many episodes there are now.

        Raises:
            ConfigError: fewer than `keep` are there, or the folder's dataset has other keys or shapes.
            RLinfError: the folder can't be written.
        """
        ...
