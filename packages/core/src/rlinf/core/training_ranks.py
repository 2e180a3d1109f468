"""What a trainer's configuration says of the ranks that train together."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ModelParallel(Protocol):
    """A trainer's configuration under which several ranks hold one copy of the model, and so train on the same samples.

    `Trainer.all_reduce` of such a trainer may add over all ranks or over one rank of each share.
    """

    def data_rank(self, rank: int, world_size: int) -> tuple[int, int]:
        """Which share of the samples a rank trains on, and how many shares there are.

        Raises:
            ConfigError: so many ranks can't hold the model.
        """
        ...


@runtime_checkable
class ChecksRanks(Protocol):
    """A trainer's configuration that can't be built on any number of ranks."""

    def check_ranks(self, world_size: int, *, one_process: bool) -> None:
        """Refuses so many ranks, before any of them starts.

        Args:
            world_size: how many train together.
            one_process: whether they share a process, as on the `local` back-end.

        Raises:
            ConfigError: names the key that does not go with them.
        """
        ...
