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
    return _waiting(requests, queue, len(slots), config, receive)


def _waiting(requests: Source, queue: Hashable, slots: int, config: RolloutConfig, receive: Receive) -> Iterator[list[Request]]:
    """What waits when the worker is free, and what comes within a while; one at a time without batching."""
    most = (config.max_batched_requests or slots) if config.batching == "waiting" else 1
    while slots:
        batch: list[Request] = []
        deadline: float | None = None
        # Each slot has one request at a time: when all have asked, nothing more can come.
        while slots and len(batch) < min(most, slots):
            request = receive() if deadline is None else _next(requests, queue, deadline)
            if request is None:
                break
            if request.obs is None:
                slots -= 1
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
        stage = stages[request.slot]
        if request.obs is None:
            del stages[request.slot]
        else:
            asked[stage].append(request)
        if asked[stage] and len(asked[stage]) == sum(of == stage for of in stages.values()):
            batch, asked[stage] = sorted(asked[stage], key=_slot), []
            size = most or len(batch)
            for first in range(0, len(batch), size):
                yield batch[first : first + size]


def _slot(request: Request) -> int:
    return request.slot
