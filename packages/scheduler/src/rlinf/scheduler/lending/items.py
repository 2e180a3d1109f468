"""Items of a step, and the ledger that counts them: each is done once by every stage, wherever it was and how often it moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf.core.errors import RLinfError


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that each stage works on: a sequence that is written, then trained on."""

    number: int
    """Unique in its step."""
    payload: Any = None
    """What the stage before has made of it; of the first stage, what the step was given."""
    progress: Any = None
    """What was done of it when it left a device, such as the tokens written so far; None begins anew."""
    size: float = 1.0
    """How much it is, as far as is known, in units of the stage's cost: its length relative to the mean."""
    units: float = 0.0
    """How much was done of it when it left a device."""
    versions: frozenset[int] = frozenset()
    """Of the weights that have worked on it."""
    finished: bool = False
    """Whether the stage is done with it."""

    def done(self, payload: Any, *, size: float = 1.0) -> Item:
        """The item as this stage hands it on.

        Args:
            payload: for the next stage.
            size: how much it is for that; the largest go first.
        """
        return replace(self, payload=payload, progress=None, units=0.0, size=size, finished=True)

    def cut(self, progress: Any, *, units: float) -> Item:
        """The item as it leaves a device before its end; whoever gets it goes on from `progress`."""
        return replace(self, progress=progress, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a device says of an item that it is done with."""

    stage: str
    device: int
    item: Item


@dataclass(slots=True)
class Ledger:
    """Where each item of a stage is: waiting, on a device, or done."""

    stage: str
    waiting: dict[int, Item] = field(default_factory=dict[int, Item])
    running: dict[int, tuple[int, Item]] = field(default_factory=dict[int, tuple[int, Item]])
    """Item → its device, and as it was when it came there."""
    done: dict[int, Item] = field(default_factory=dict[int, Item])
    twice: int = 0
    """Results of items that were done already: a worker that was killed may have sent one just before."""

    def add(self, items: Iterable[Item]) -> None:
        """Takes in new items.

        Raises:
            RLinfError: a number is known already.
        """
        for item in items:
            if item.number in self.waiting or item.number in self.running or item.number in self.done:
                raise RLinfError(f"{self.stage}", f"item {item.number} came twice", "Number the items of a step differently.")
            self.waiting[item.number] = item

    def assign(self, device: int) -> Item:
        """Gives a device an item that waits: of those that were begun, or else of all, the largest."""
        chosen = min(self.waiting.values(), key=lambda item: (item.progress is None, -item.size, item.number))
        self.running[chosen.number] = (device, self.waiting.pop(chosen.number))
        return chosen

    def finish(self, item: Item) -> bool:
        """An item is done; says whether that is news."""
        if item.number in self.done:
            self.twice += 1
            return False
        # It may have been given to others since, after its worker failed: their result will come twice.
        self.running.pop(item.number, None)
        self.waiting.pop(item.number, None)
        self.done[item.number] = item
        return True

    def take_back(self, device: int, items: Iterable[Item]) -> int:
        """A device has left, and says how far its items are; returns how many were cut.

        What it neither gives back nor has finished waits again as it was when it came there, so that nothing is lost silently.
        """
        back = {item.number: item for item in items}
        cut = 0
        for number, item in self.on(device).items():
            del self.running[number]
            found = back.get(number, item)
            # Not those that come back as they were given: nothing was done of them.
            cut += found.units > item.units
            self.waiting[number] = found
        return cut

    def on(self, device: int) -> dict[int, Item]:
        """The items of a device."""
        return {number: item for number, (held, item) in self.running.items() if held == device}

    def items(self) -> list[Item]:
        """Those that are not done."""
        return [*self.waiting.values(), *(item for _, item in self.running.values())]

    def check(self, expected: int) -> None:
        """Every item was done once.

        Raises:
            RLinfError: says how many are where.
        """
        if len(self.done) != expected or self.waiting or self.running:
            found = f"of {expected} items {len(self.done)} are done, {len(self.waiting)} wait and {len(self.running)} run"
            raise RLinfError(self.stage, found, "This is a fault of the scheduler: please report it.")
