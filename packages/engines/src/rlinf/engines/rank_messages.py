"""How ranks that share a process add: by the messages of their worker, since a process is in one process group only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from rlinf.core.protocols import Messenger
from rlinf.core.worker import Worker

_TAG = "trainer ranks"


@dataclass(frozen=True, slots=True)
class RankMessages:
    """One rank's access to the others of its worker's group."""

    messenger: Messenger
    group: str
    rank: int
    world_size: int
    timeout_s: float
    """Seconds to wait for another rank."""

    @classmethod
    def of_worker(cls, rank: int, world_size: int, timeout_s: float) -> RankMessages | None:
        """Those of the worker whose code runs; None outside of workers, or if its group has other ranks."""
        worker: Worker | None = Worker.current_worker
        if worker is None or (worker.rank, worker.world_size) != (rank, world_size):
            return None
        return cls(worker.messenger, worker.group_name, rank, world_size, timeout_s)

    def total(self, value: Tensor) -> Tensor:
        """The sum over ranks, in a new tensor; every rank calls it."""
        own = value.detach()
        if self.rank:
            self.messenger.send(own, self.group, 0, tag=_TAG)
            return self._from(0).to(own.device)
        added = own.clone()
        # In the order of ranks, whoever comes first: a run repeats exactly.
        for other in range(1, self.world_size):
            added += self._from(other).to(own.device)
        self._send(added)
        return added

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites `tensor` by that of rank 0; every rank calls it."""
        if self.rank:
            tensor.detach().copy_(self._from(0))
        else:
            self._send(tensor.detach())

    def _send(self, tensor: Tensor) -> None:
        """Sends a copy from rank 0 to every other one."""
        for other in range(1, self.world_size):
            self.messenger.send(tensor, self.group, other, tag=_TAG)

    def _from(self, rank: int) -> Tensor:
        return cast("Tensor", self.messenger.recv(self.group, rank, tag=_TAG, timeout=self.timeout_s))
