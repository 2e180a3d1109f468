"""Ranks that are threads of one process, as workers of one group on the local back-end are."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from rlinf.core.worker import Worker, WorkerContext, injected


class Letters:
    """A messenger among threads."""

    def __init__(self, rank: int, boxes: defaultdict) -> None:
        self.rank, self.boxes = rank, boxes

    def send(self, item, group, rank, *, tag="") -> None:
        self.boxes[group, self.rank, rank, tag].put(item.clone())

    def recv(self, group, rank, *, tag="", timeout=None):
        return self.boxes[group, rank, self.rank, tag].get(timeout=timeout)


class Rank(Worker):
    pass


def in_each(ranks: int, call) -> list:
    """What a call gives in the workers of one group."""
    boxes = defaultdict(SimpleQueue)
    for sender in range(ranks):
        for receiver in range(ranks):
            boxes["actor", sender, receiver, "trainer ranks"] = SimpleQueue()

    def one(rank: int):
        with injected(WorkerContext(group="actor", rank=rank, world_size=ranks, messenger=Letters(rank, boxes))):
            Rank()
            return call(rank)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))
