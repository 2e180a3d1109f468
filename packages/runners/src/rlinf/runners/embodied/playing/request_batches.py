"""Which requests a rollout worker decides for in one pass of the policy (`rollout.batching`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager

from rlinf.core.errors import ChannelEmpty, DeadlineExceeded
from rlinf.core.protocols import Channel
from rlinf.runners.embodied.playing.slots import Slot
from rlinf.runners.embodied.schema import RolloutConfig
from rlinf.runners.embodied.topology import NewWeights, Request


class Requests:
    """The requests to a rollout worker; weights that are announced among them are taken on the way.

    Args:
        channel: carries both.
        queue: the key of those to the worker; see `request_queue`.
        take: receives the weights of that number.
        waiting: inside, the worker has nothing to decide for.
    """

    def __init__(
        self,
        channel: Channel,
        queue: Hashable,
        take: Callable[[int], object],
        waiting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._channel, self._queue, self._take, self._waiting = channel, queue, take, waiting

    def next(self) -> Request:
        """The next one; waits for it."""
        with self._waiting():
            return self._taken(lambda: self._channel.get(key=self._queue))

    def before(self, deadline: float) -> Request | None:
        """The next one if it is there, or comes before a moment of `time.monotonic()`."""
        try:
            return self._taken(lambda: self._channel.get_nowait(key=self._queue))
        except ChannelEmpty:
            left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            return self._taken(lambda: self._channel.get(key=self._queue, timeout=left))
        except DeadlineExceeded:
            return None

    def _taken(self, get: Callable[[], Request | NewWeights]) -> Request:
        while isinstance(item := get(), NewWeights):
            self._take(item.number)
        return item


def request_batches(requests: Requests, slots: Sequence[Slot], config: RolloutConfig) -> Iterator[list[Request]]:
    """Batches of requests, until every slot has said that it is done.

    Args:
        requests: those to the worker.
        slots: those that it serves.
        config: says what goes together.
    """
    return _by_stage(requests, slots, config) if config.batching == "stage" else _waiting(requests, slots, config)


def _waiting(requests: Requests, slots: Sequence[Slot], config: RolloutConfig) -> Iterator[list[Request]]:
    """What waits when the worker is free, and what comes within a while; one at a time without batching."""
    most = (config.max_batched_requests or len(slots)) if config.batching == "waiting" else 1
    # By name: that a slot is done is said twice where its env worker dies after it said so.
    asking = {slot.index for slot in slots}
    while asking:
        batch: list[Request] = []
        deadline: float | None = None
        # Each slot has one request at a time: when all have asked, nothing more can come.
        while asking and len(batch) < min(most, len(asking)):
            request = requests.next() if deadline is None else requests.before(deadline)
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


def _by_stage(requests: Requests, slots: Sequence[Slot], config: RolloutConfig) -> Iterator[list[Request]]:
    """The k-th requests of one pipeline stage of all env workers, which are the same ones whatever comes first.

    Nobody can wait in a circle: when every env worker waits, each of its slots has asked, so that every batch is whole.
    """
    stages = {slot.index: slot.stage for slot in slots}
    asked: dict[int, list[Request]] = {stage: [] for stage in stages.values()}
    while stages:
        request = requests.next()
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
            batch, asked[stage] = sorted(asked[stage], key=lambda request: request.slot), []
            size = config.max_batched_requests or len(batch)
            for first in range(0, len(batch), size):
                yield batch[first : first + size]
