"""The cluster that this process made last, for those that `Cluster` itself is made of."""

from __future__ import annotations

from typing import Any, Protocol

from rlinf.core.errors import RLinfError
from rlinf.scheduler.transport.transport import Transport


class RunningCluster(Protocol):
    """What they need of it."""

    @property
    def transport(self) -> Transport:
        """The driver's; asking for it may start the cluster."""
        ...

    def group(self, name: str) -> Any:
        """A group that was launched before."""
        ...


NEWEST: list[RunningCluster] = []
"""At most one."""


def newest(place: str) -> RunningCluster:
    """The cluster that this process made last, if it still runs.

    Raises:
        RLinfError: there is none; the error is that of `place`.
    """
    if not NEWEST:
        raise RLinfError(place, "this process has no running cluster", "Make one: Cluster().")
    return NEWEST[0]
