"""Queues against a plain model: whatever is asked in whatever order, they answer as a list would."""

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rlinf.scheduler.transport.queues import Get, Put, Queues
from rlinf.scheduler.transport.waits import ThreadMonitor

PEERS = st.sampled_from(["a", "b", "c"])
KEYS = st.sampled_from([("c", 0), ("c", 1)])
MAXSIZE = 3


class Model:
    """One queue, as slow and plain as can be: after each event, the oldest request that can be served is served, until none can."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int]] = []  # number of arrival, weight
        self.puts: list[Put] = []
        self.gets: list[Get] = []
        self.held: dict[Get, list[tuple[int, int]]] = {}
        self.taken: dict[Get, list[tuple[int, int]]] = {}
        self.ended = False
        self.expected: dict[Any, str] = {}

    def batch(self, get: Get) -> int:
        if get.target is None:
            return min(1, len(self.items))
        for count in range(1, len(self.items) + 1):
            weight = sum(weight for _, weight in self.items[:count])
            if weight >= get.target:
                return count if weight <= get.target or count == 1 else count - 1
        return len(self.items) if self.ended or len(self.items) >= MAXSIZE else 0

    def settle(self, arrivals: dict[Put, int]) -> None:
        if self.ended:
            for put in self.puts:
                self.expected[put] = "closed"
            self.puts.clear()
        while self.step(arrivals):
            pass
        if self.ended and not self.items:
            for get in list(self.gets):
                if all(holder.peer == get.peer for holder in self.held):
                    self.expected[get] = "end"
                    self.gets.remove(get)

    def step(self, arrivals: dict[Put, int]) -> bool:
        if self.puts and len(self.items) < MAXSIZE:
            put = self.puts.pop(0)
            self.items.append((arrivals.setdefault(put, len(arrivals)), put.item[0]))
            self.expected[put] = "done"
            return True
        for get in self.gets:
            count = self.batch(get)
            if count:
                self.gets.remove(get)
                self.held[get] = self.taken[get] = self.items[:count]
                del self.items[:count]
                self.expected[get] = "done"
                return True
        return False


class QueueMachine(RuleBasedStateMachine):
    """Puts, gets, batches, cancellations, returns, receipts and ends, by three peers on two keys of one bounded channel."""

    gets = Bundle("gets")

    def __init__(self) -> None:
        super().__init__()
        self.queues = Queues(lambda: ThreadMonitor(1.0))
        self.models = {("c", 0): Model(), ("c", 1): Model()}
        self.arrivals: dict[Put, int] = {}
        self.put_order: deque[Put] = deque()

    @rule(key=KEYS, peer=PEERS, weight=st.integers(0, 4), now=st.booleans())
    def put(self, key: Any, peer: str, weight: int, now: bool) -> None:
        put = Put(key, peer, (weight, [bytes([len(self.put_order) % 256])]), MAXSIZE, now=now)
        self.put_order.append(put)
        self.start(put, self.models[key].puts, "full" if now else "")

    @rule(target=gets, key=KEYS, peer=PEERS, weight=st.none() | st.integers(0, 9), now=st.booleans())
    def get(self, key: Any, peer: str, weight: int | None, now: bool) -> Get:
        get = Get(key, peer, weight, now=now)
        self.start(get, self.models[key].gets, "empty" if now else "")
        return get

    def start(self, operation: Any, waiting: list[Any], refusal: str) -> None:
        """Starts it; with a `refusal` it does not wait, and that is what becomes of it then."""
        model = self.models[operation.name]
        waiting.append(operation)
        model.settle(self.arrivals)
        if refusal and operation in waiting:
            waiting.remove(operation)
            model.expected[operation] = refusal
        self.queues.start(operation)

    @rule(get=consumes(gets), how=st.sampled_from(["took", "back", "abandon"]))
    def resolve(self, get: Get, how: str) -> None:
        model = self.models[get.name]
        if get in model.gets:
            model.gets.remove(get)
            model.expected[get] = "cancelled"
            if how == "abandon":
                self.queues.abandon(get)
            else:
                assert self.queues.cancel(get)
        elif model.expected[get] == "done":
            items = model.held.pop(get)
            if how == "took":
                self.queues.resolve(get, back=False)
            else:
                model.items = sorted([*model.items, *items])
                del model.taken[get]
                self.queues.abandon(get) if how == "abandon" else self.queues.resolve(get, back=True)
        else:
            assert not self.queues.cancel(get)
        model.settle(self.arrivals)

    @rule()
    def end(self) -> None:
        for model in self.models.values():
            model.ended = True
            model.settle(self.arrivals)
        self.queues.end("c", "closed by a test")

    @invariant()
    def agrees(self) -> None:
        for key, model in self.models.items():
            assert self.queues.size(key) == len(model.items)
            for request, expected in model.expected.items():
                assert request.done
                assert (request.problem[0] if request.problem else "done") == expected
            for request in [*model.puts, *model.gets]:
                assert not request.done
            for get, items in model.held.items():
                assert [weight for _, weight, _ in get.entries] == [weight for _, weight in items]
                order = [self.arrivals_of(blobs) for _, _, blobs in get.entries]
                assert order == [number for number, _ in items]

    @invariant()
    def nothing_is_left(self) -> None:
        busy = {key for key, model in self.models.items() if model.items or model.puts or model.gets or model.held}
        assert set(self.queues._queues) == busy

    def arrivals_of(self, blobs: Any) -> int:
        return next(self.arrivals[put] for put in self.put_order if put.item[1] is blobs)


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_queues_behave_like_a_list = pytest.mark.timeout(200)(QueueMachine.TestCase)
