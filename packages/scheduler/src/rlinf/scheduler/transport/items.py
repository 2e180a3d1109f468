"""`Items`: the content of one queue, in order of arrival."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from rlinf.scheduler.transport.encoding import Blobs

Entry: TypeAlias = tuple[int, int, Blobs]
"""Number in order of arrival, weight and content."""


class Items:
    """What is in a queue, and how much of it a get may take."""

    __slots__ = ("entries", "maxsize", "weight")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.maxsize = 0
        self.weight = 0
        """Of all entries."""

    def append(self, entry: Entry) -> None:
        """An entry arrives."""
        self.entries.append(entry)
        self.weight += entry[1]

    def insert(self, entry: Entry) -> None:
        """An entry comes back to its place; those before it are few, as they came back, too."""
        at = 0
        for other in self.entries:
            if other[0] > entry[0]:
                break
            at += 1
        self.entries.insert(at, entry)
        self.weight += entry[1]

    def pop(self, count: int) -> list[Entry]:
        """Takes the oldest entries."""
        taken = [self.entries.popleft() for _ in range(count)]
        for _, weight, _ in taken:
            self.weight -= weight
        return taken

    def ready(self, target: int | None, *, ended: bool) -> int:
        """How many items a get may take now; 0 if it must wait.

        A batch ends where its weights reach the target, or where the next item would exceed it; it has at least one item. A full
        bounded queue can't grow any more, nor can one that has ended, so that what is there is the batch.
        """
        if target is None:
            return 1 if self.entries else 0
        if self.weight >= target:
            total = 0
            for count, (_, weight, _) in enumerate(self.entries):
                if count and total + weight > target:
                    return count
                total += weight
                if total >= target:
                    return count + 1
        full = self.maxsize and len(self.entries) >= self.maxsize
        return len(self.entries) if full or ended else 0
