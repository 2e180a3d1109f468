"""Which requests a rollout worker decides for in one pass of the policy (`rollout.batching`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

from rlinf.core.errors import ChannelEmpty, DeadlineExceeded
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.schema import RolloutConfig
from rlinf.runners.embodied.topology import Request

Receive = Callable[[], Request]


class Source(Protocol):
    """What requests are taken from, such as a channel."""

    def get(self, *, key: Hashable, timeout: float | None = None) -> Any:
        """The next one; waits for it."""
        ...

    def get_nowait(self, *, key: Hashable) -> Any:
        """The next one; `ChannelEmpty` if there is none."""
        ...


def request_batches(
    requests: Source, queue: Hashable, slots: Sequence[Slot], config: RolloutConfig, receive: Receive
) -> Iterator[list[Request]]:
    """Batches of requests, until every slot has said that it is done.

    Args:
        requests: where they come from.
        queue: their key; see `request_queue`.
        slots: those that the worker serves.
        config: says what goes together.
        receive: waits for the next one.
    """
    if config.batching == "stage":
        return _by_stage(slots, config.max_batched_requests, receive)
    return _waiting(requests, queue, slots, config, receive)


def _waiting(
    requests: Source, queue: Hashable, slots: Sequence[Slot], config: RolloutConfig, receive: Receive
) -> Iterator[list[Request]]:
    """What waits when the worker is free, and what comes within a while; one at a time without batching."""
    most = (config.max_batched_requests or len(slots)) if config.batching == "waiting" else 1
    # By name: that a slot is done is said twice where its env worker dies after it said so.
    asking = {slot.index for slot in slots}
    while asking:
        batch: list[Request] = []
        deadline: float | None = None
        # Each slot has one request at a time: when all have asked, nothing more can come.
        while asking and len(batch) < min(most, len(asking)):
            request = receive() if deadline is None else _next(requests, queue, deadline)
            if request is None:
                break
            if request.obs is None:
                asking.discard(request.slot)
                continue
            batch.append(request)
            if deadline is None:
                deadline = time.monotonic() + config.batch_wait_ms / 1e3
        if batch:
            yield batch


def _next(requests: Source, queue: Hashable, deadline: float) -> Request | None:
    """The next request if it is there, or comes before a moment of `time.monotonic()`."""
    try:
        return requests.get_nowait(key=queue)
    except ChannelEmpty:
        left = deadline - time.monotonic()
    if left <= 0:
        return None
    try:
        return requests.get(key=queue, timeout=left)
    except DeadlineExceeded:
        return None


def _by_stage(slots: Sequence[Slot], most: int | None, receive: Receive) -> Iterator[list[Request]]:
    """The k-th requests of one pipeline stage of all env workers, which are the same ones whatever comes first.

    Nobody can wait in a circle: when every env worker waits, each of its slots has asked, so that every batch is whole.
    """
    stages = {slot.index: slot.stage for slot in slots}
    asked: dict[int, list[Request]] = {stage: [] for stage in stages.values()}
    while stages:
        request = receive()
        stage = stages.get(request.slot)
        # Said to be done on behalf of a process that died; what it had asked is of no use to anybody.
        if stage is None:
            continue
        if request.obs is None:
            del stages[request.slot]
            asked[stage] = [other for other in asked[stage] if other.slot != request.slot]
        else:
            asked[stage].append(request)
        if asked[stage] and len(asked[stage]) == sum(of == stage for of in stages.values()):
            batch, asked[stage] = sorted(asked[stage], key=_slot), []
            size = most or len(batch)
            for first in range(0, len(batch), size):
                yield batch[first : first + size]


def _slot(request: Request) -> int:
    return request.slot
