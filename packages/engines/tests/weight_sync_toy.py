"""Senders and receivers of weights as threads, and what may happen to their messages."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from rlinf.core import Weights
from rlinf.core.errors import DeadlineExceeded, RLinfError
from rlinf.engines import FullWeightSync


class Killed(BaseException):
    """A process that is gone says nothing any more."""


class Queues(defaultdict):
    """A queue for each key, whichever of two threads asks first."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __missing__(self, key):
        with self.lock:
            return self.setdefault(key, queue.Queue())


class ToyNetwork:
    """Messages between threads; everything is pickled on its way, as between processes."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.dead = set()
        self.sent = []
        self.spoil: Callable[[Any], Any] = lambda item: item

    def at(self, group: str, rank: int, dies_after: int | None = None) -> ToyMessenger:
        self.dead.discard((group, rank))
        return ToyMessenger(self, (group, rank), dies_after)

    def put(self, key: Any, item: Any) -> Done:
        data = pickle.dumps(self.spoil(item), protocol=5)
        self.queues[key].put(data)
        return Done(None)

    def get(self, key: Any, timeout: float) -> Any:
        """From one that is dead, what it had sent comes, and then the deadline at once: no test need wait for it."""
        until = time.monotonic() + timeout
        while True:
            over = key[0] in self.dead or time.monotonic() >= until
            try:
                return pickle.loads(self.queues[key].get(timeout=0.02))
            except queue.Empty:
                if over:
                    raise DeadlineExceeded(str(key), "nothing came") from None


class Done:
    def __init__(self, value: Any) -> None:
        self.value = value

    def wait(self, timeout: float | None = None) -> Any:
        return self.value() if callable(self.value) else self.value


class ToyMessenger:
    """One worker's messenger; it may die after some messages."""

    def __init__(self, network: ToyNetwork, address: tuple[str, int], dies_after: int | None) -> None:
        self.network, self.address, self.left = network, address, dies_after

    def tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.network.dead.add(self.address)
                raise Killed

    def send(self, item, group, rank, *, tag="", async_op=False):
        self.tick()
        self.network.sent.append((self.address, (group, rank), tag))
        return self.network.put((self.address, (group, rank), tag), item)

    def recv(self, group, rank, *, tag="", timeout=None):
        self.tick()
        return self.network.get(((group, rank), self.address, tag), timeout)

    def broadcast(self, item, members, src, *, tag="", async_op=False):
        self.tick()
        assert async_op
        tag = f"broadcast {members} {tag}"
        if src != self.address:
            work = Done(None)
            work.wait = lambda timeout: self.network.get((src, self.address, tag), timeout)
            return work
        self.network.sent.append((self.address, None, tag))
        for member in members:
            if member != src:
                self.network.put((self.address, member, tag), item)
        return Done(item)


def model(version: int = 0, **changes) -> Weights:
    tensors = {
        "b.weight": torch.randn(3, 2),
        "a.bias": torch.randn(4).to(torch.bfloat16),
        "step": torch.tensor(7),
        "empty": torch.zeros(0, 2),
        "turned": torch.randn(2, 3).T,
    }
    return Weights(tensors={k: v for k, v in (tensors | changes).items() if v is not None}, version=version, extra={"scale": 2})


def together(*calls: Callable[[], Any], join_s: float = 60) -> list[Any]:
    """Runs calls in threads of their own; what each returned or raised."""
    results: list[Any] = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except (RLinfError, Killed) as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(join_s)
        assert not thread.is_alive()
    return results


def exchange(published: Weights, *held: Weights | None, timeout_s: float = 20.0, sync=None, network=None) -> list[Any]:
    """Runs a sender and its receivers (None never asks); what each returned or raised, the sender first."""
    network, sync = network or ToyNetwork(), sync or FullWeightSync(timeout_s=timeout_s)
    sender = network.at("actor", 0)
    return exchange_at(sync, sender, published, [network.at("rollout", r) for r in range(len(held))], held)


def exchange_at(sync, sender: ToyMessenger, published: Weights, messengers: list[ToyMessenger], held) -> list[Any]:
    """The same with messengers that live longer than one exchange."""
    ranks = [messenger.address[1] for messenger in messengers]
    calls = [lambda: sync.send(sender, published, "rollout", ranks)]
    pairs = [(messenger, current) for messenger, current in zip(messengers, held, strict=True) if current is not None]
    calls += [lambda d=messenger, c=current: sync.recv(d, c, "actor", 0) for messenger, current in pairs]
    return together(*calls)
