"""The ranks that train together: how they meet, and how they add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.core.errors import ConfigError, DeadlineExceeded, ShapeError
from rlinf.core.metrics import Statistic
from rlinf.core.protocols import AllReduce, Messenger
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


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank's view of all; a single rank sends nothing."""

    rank: int
    world_size: int
    grouped: bool = False
    """Whether a single rank has a process group of its own, as FSDP wants."""
    messages: RankMessages | None = None
    """How ranks that share a process add; None where each has a process of its own."""

    @property
    def alone(self) -> bool:
        """Whether there is only this rank."""
        return self.world_size == 1

    def all_reduce(self, value: Tensor) -> Tensor:
        """The sum over ranks, in a new tensor, or of a single rank the one given; every rank calls it."""
        if self.alone:
            return value
        if self.messages is not None:
            return self.messages.total(value)
        total = value.detach().clone()
        dist.all_reduce(total)  # pyright: ignore[reportUnknownMemberType]
        return total

    def all_gather(self, value: float) -> list[float]:
        """The number of each rank, in order; every rank calls it."""
        # Each rank writes into a place of its own. Float64 holds whole numbers up to 2⁵³ exactly.
        own = torch.zeros(self.world_size, dtype=torch.float64)
        own[self.rank] = value
        return cast("list[float]", self.all_reduce(own).tolist())  # pyright: ignore[reportUnknownMemberType]

    def micro_batches(self, own: int, place: str) -> list[int]:
        """How many each rank has; every rank calls it.

        Raises:
            ShapeError: a rank has none; raised on every rank.
        """
        counts = self.all_gather(own)
        idle = sum(not count for count in counts)
        if idle:
            raise ShapeError(place, f"{idle} ranks have no micro-batch", "Use larger batches or fewer ranks.")
        return [int(count) for count in counts]

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites `tensor` by that of rank 0; every rank calls it."""
        if self.messages is not None:
            self.messages.broadcast(tensor)
        elif not self.alone:
            dist.broadcast(tensor, src=0)  # pyright: ignore[reportUnknownMemberType]

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if self.messages is not None:
            self.messages.total(torch.zeros(()))
        elif not self.alone:
            dist.barrier()  # pyright: ignore[reportUnknownMemberType]

    def leave(self) -> None:
        """Ends the process group; that of a single rank with the last that uses it."""
        if self.messages is not None or (self.alone and not self.grouped):
            return
        if self.alone:
            _SINGLES.pop()
        if dist.is_initialized() and not _SINGLES:
            _await_gloo()
            dist.destroy_process_group()


def _await_gloo() -> None:
    """Waits until gloo's threads have let go of the tensors of their last operations, for at most 10 seconds.

    They do so after the caller has its result, and need Python's lock for it; where they come to it only while the interpreter
    ends, the process aborts (pytorch/pytorch#190489). Ending the group joins them, but tensors that FSDP shares keep the group.
    """
    deadline = monotonic() + 10
    quiet = 0
    # One that waits for Python's lock seems idle, too; but it gets the lock while we sleep.
    while quiet < 2 and monotonic() < deadline:
        sleep(0.001)
        quiet = 0 if any(_gloo_works()) else quiet + 1


def _gloo_works() -> Iterator[bool]:
    """Of each of gloo's threads, whether it runs or wants to; Linux says it."""
    for thread in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has ended
            name, _, state = thread.read_text().partition("(")[2].rpartition(") ")
            if name == "pt_gloo_runloop":
                yield state[0] != "S"


_SINGLES: list[int] = []
"""One entry for each trainer of this process that is a single rank in the process group, which they share."""


def summed_metrics(
    all_reduce: AllReduce, metrics: Mapping[str, Statistic], numbers: Sequence[float] = ()
) -> tuple[dict[str, Statistic], list[float]]:
    """Metrics, whose names are the same on every rank, and further numbers, over the ranks that add; in one message."""
    names = sorted(metrics)
    own = [*numbers, *(number for name in names for number in metrics[name].parts)]
    # Float32 tells whole numbers apart only up to 2²⁴.
    left = iter(cast("list[float]", all_reduce(torch.tensor(own, dtype=torch.float64)).tolist()))
    summed = list(islice(left, len(numbers)))
    return {name: type(metrics[name])(*islice(left, len(metrics[name].parts))) for name in names}, summed


def join(rank: int, world_size: int, rendezvous: str, *, device: torch.device, timeout_s: float, grouped: bool = False) -> Ranks:
    """Meets the other ranks: gloo for the CPU, and NCCL too if the weights are on a GPU. Ranks of one process send messages.

    Args:
        rank: 0 … world_size − 1.
        world_size: how many ranks meet.
        rendezvous: `tcp://host:port`; "" for one rank, and for the ranks of a worker group that share a process.
        device: where the weights are.
        timeout_s: seconds to wait for the others, here and in every collective.
        grouped: whether a process group is needed; a single rank gets one without a rendezvous.

    Raises:
        ConfigError: several ranks without a rendezvous that are no workers of one process, or need a process group; or the process
            is in another group already.
        DeadlineExceeded: another rank did not come in time.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if world_size == 1:
        return _single(backend) if grouped else Ranks(0, 1)
    place = f"trainer rank {rank} of {world_size}"
    if not rendezvous:
        return _in_one_process(rank, world_size, timeout_s, place, grouped=grouped)
    if dist.is_initialized():
        raise ConfigError(place, "this process is in a process group already", "Give each trainer a process of its own.")
    deadline = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=deadline)
    except (dist.DistError, TimeoutError) as error:
        raise DeadlineExceeded(place, f"the ranks did not meet at {rendezvous} in {timeout_s:g} s ({error})") from error
    return Ranks(rank, world_size)


def _in_one_process(rank: int, world_size: int, timeout_s: float, place: str, *, grouped: bool) -> Ranks:
    messages = RankMessages.of_worker(rank, world_size, timeout_s)
    if messages is None or grouped:
        found = "expected a rendezvous tcp://host:port, found none"
        problem = found if messages is None else f"{found}, as ranks share a process and what they train with needs one for each"
        raise ConfigError(place, problem, "Launch each rank in its own process, as cluster.backend: ray does.")
    return Ranks(rank, world_size, messages=messages)


def _single(backend: str) -> Ranks:
    if not dist.is_initialized():
        # A store in this process: nobody else is to be met, and no port is needed.
        dist.init_process_group(backend, store=cast("Any", dist).HashStore(), rank=0, world_size=1)
    elif dist.get_world_size() != 1:
        raise ConfigError(
            "trainer", "this process is in a process group of several ranks", "Give each trainer a process of its own."
        )
    _SINGLES.append(1)
    return Ranks(0, 1, grouped=True)
