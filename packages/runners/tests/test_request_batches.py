"""What a rollout worker decides for in one pass."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.runners.embodied.playing.request_batches import Requests, request_batches
from rlinf.runners.embodied.playing.slots import layout
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.schema import RolloutConfig
from rlinf.runners.embodied.topology import Request


def asked(slot: int, t: int | None) -> Request:
    """The request for decision t of a slot; None says that the slot is done."""
    return Request(slot=slot, env_rank=0, key=() if t is None else (t,), obs=None if t is None else {})


def requests_of(channel: Any) -> Requests:
    return Requests(channel, 0, take=lambda number: None, waiting=nullcontext)


def batches(order: list[Request], channel: Any, *, ranks: int = 1, stages: int = 2, **config: Any) -> list[list[tuple[int, int]]]:
    """Slot and decision of each request, batch by batch, if all requests are there from the start."""
    slots = layout(12, ranks=ranks, stages=stages)
    for request in order:
        channel.put(request, key=0)
    found = request_batches(requests_of(channel), slots, RolloutConfig(pipeline_stage_num=stages, **config))
    return [[(request.slot, request.key[0]) for request in batch] for batch in found]


ROUND = [asked(0, 0), asked(1, 0), asked(0, 1), asked(1, 1), asked(0, None), asked(1, None)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]),
        ({"batching": "waiting"}, [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]),
        ({"batching": "waiting", "max_batched_requests": 1}, [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]),
        ({"batching": "stage"}, [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]),
    ],
)
def test_what_goes_together(queues: Any, config: dict[str, Any], expected: Any) -> None:
    assert batches(ROUND, queues(), **config) == expected


def test_who_has_ended_is_not_waited_for(queues: Any) -> None:
    order = [asked(0, 0), asked(1, None), asked(0, 1), asked(0, None)]
    for batching in ("waiting", "stage"):
        assert batches(order, queues(), batching=batching) == [[(0, 0)], [(0, 1)]]


class Clocked:
    """A channel in which nothing comes any more, and that says how long it was asked to wait."""

    def __init__(self, channel: Any) -> None:
        self.channel, self.waits = channel, list[float]()

    def put(self, item: Any, *, key: Any) -> None:
        self.channel.put(item, key=key)

    def get_nowait(self, *, key: Any) -> Any:
        return self.channel.get_nowait(key=key)

    def get(self, *, key: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            return self.channel.get(key=key)
        self.waits.append(timeout)
        raise DeadlineExceeded("clocked", "nothing came")


@pytest.mark.parametrize("wait_ms", [0.0, 20_000.0])
def test_a_batch_waits_for_more_until_its_deadline(queues: Any, wait_ms: float) -> None:
    channel = Clocked(queues())
    slots = layout(12, ranks=1, stages=3)
    for request in (asked(0, 0), asked(1, 0)):
        channel.put(request, key=0)
    config = RolloutConfig(batching="waiting", batch_wait_ms=wait_ms)
    first = next(iter(request_batches(requests_of(channel), slots, config)))
    assert [request.slot for request in first] == [0, 1]
    assert len(channel.waits) == (wait_ms > 0)
    assert all(0 < wait <= wait_ms / 1e3 for wait in channel.waits)


def test_a_stage_is_decided_for_together_whoever_asks_first() -> None:
    """Three env workers with two stages, of which some end early: what goes together never depends on the order of arrival."""
    lengths = [3, 3, 1, 2, 3, 0]
    expected = {stage: [[(s, t) for s in range(stage, 6, 2) if lengths[s] > t] for t in range(3)] for stage in (0, 1)}
    for seed in range(50):
        left = [[*(asked(slot, t) for t in range(length)), asked(slot, None)] for slot, length in enumerate(lengths)]
        draw = random.Random(seed)
        slots = layout(12, ranks=3, stages=2)
        ready = set(range(6))
        by_stage: dict[int, list[list[tuple[int, int]]]] = {0: [], 1: []}

        def receive(key: int, ready: set[int] = ready, left: Any = left, draw: random.Random = draw) -> Request:
            # A slot asks again only when it was answered.
            slot = draw.choice(sorted(ready))
            request = left[slot].pop(0)
            ready.discard(slot)
            return request

        channel = SimpleNamespace(get=receive)
        for batch in request_batches(requests_of(channel), slots, RolloutConfig(batching="stage")):
            by_stage[batch[0].slot % 2].append([(request.slot, request.key[0]) for request in batch])
            ready.update(request.slot for request in batch)
        assert by_stage == {stage: [batch for batch in found if batch] for stage, found in expected.items()}, seed


def test_a_whole_stage_is_parted_by_the_cap(queues: Any) -> None:
    order = [asked(slot, t) for t in (0, None) for slot in (2, 0, 1)]
    found = batches(order, queues(), ranks=3, stages=1, batching="stage", max_batched_requests=2)
    assert list(itertools.chain(*found)) == [(0, 0), (1, 0), (2, 0)]
    assert [len(batch) for batch in found] == [2, 1]


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"batch_wait_ms": 5.0}, r"rollout\.batch_wait_ms: 5 ms, and batching: none does not follow the clock"),
        ({"batching": "stage", "batch_wait_ms": 5.0}, r"rollout\.batch_wait_ms: 5 ms"),
        ({"batching": "waiting", "batch_wait_ms": -1.0}, r"rollout\.batch_wait_ms: expected at least 0 and finite"),
        ({"max_batched_requests": 4}, r"rollout\.max_batched_requests: nothing is batched"),
        ({"batching": "stage"}, r"rollout\.batching: stage: 'toy_model' does not say that rows of one pass"),
        ({"rollout_queue_size": 8}, r"rollout\.rollout_queue_size: unknown key\. Set rollout\.batching: waiting"),
    ],
)
def test_settings_that_mean_nothing_are_refused(toy_data: dict[str, Any], rollout: dict[str, Any], message: str) -> None:
    toy_data["rollout"] = rollout
    with pytest.raises(ConfigError, match=message):
        read_embodied(toy_data)
