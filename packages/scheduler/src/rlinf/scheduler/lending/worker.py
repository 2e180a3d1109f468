"""`LentWorker`: works on items while it has its device, and leaves it when it is asked to, with what it has not finished."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from rlinf.core.protocols import Channel
from rlinf.core.worker import Worker
from rlinf.scheduler.lending.items import Item, Result


class LentWorker(Worker, ABC):
    """One rank of a stage, placed on one device, which it has only from `serve` to `leave`.

    The device lock is held for that time, so that no two stages work on a device, whoever else uses it.
    """

    slots: int = 1
    """Items that it works on at a time."""
    _leaving: asyncio.Event | None = None
    _inbox: Sequence[Item] = ()
    _key: str = ""
    _woken: asyncio.Event | None = None

    @property
    @abstractmethod
    def version(self) -> int:
        """That of its weights; it changes between two steps only."""

    @abstractmethod
    async def load(self, version: int) -> None:
        """Comes to the device: weights, caches.

        Args:
            version: the one of this step; a worker that was started again has to get its weights.
        """

    @abstractmethod
    async def offload(self) -> None:
        """Leaves the device to others."""

    @abstractmethod
    async def process(self, item: Item) -> Item:
        """Works on an item, beside up to `slots` − 1 others.

        Returns:
            `item.done(…)`, or soon after `interrupt()`, `item.cut(…)`: another worker goes on from there.
        """

    def interrupt(self) -> None:
        """Items are to come back; `leaving` says the same. Does more where a library has to be told."""

    @property
    def leaving(self) -> bool:
        """Whether the device is to be given away."""
        return self._leaving is not None and self._leaving.is_set()

    async def serve(self, results: Channel, version: int, giver: str) -> list[Item]:
        """Has the device, until `leave`; returns the items that were not finished.

        Args:
            results: takes a `Result` for each item that is done, under the key that `begin` named last.
            version: of the weights of this step.
            giver: who had the device before, for the trace; "" for nobody.
        """
        self._leaving, self._woken = asyncio.Event(), asyncio.Event()
        running: dict[asyncio.Task[Item], Item] = {}
        with self.worker_timer(f"move from {giver}" if giver else "come"):
            # Not `async with`: the timer is for the wait alone, and the lock is held far beyond it.
            await self.device_lock.__aenter__()
        try:
            with self.worker_timer("load"):
                await self.load(version)
            while not self.leaving:
                while self._inbox and len(running) < self.slots:
                    item, self._inbox = self._inbox[0], self._inbox[1:]
                    running[asyncio.ensure_future(self._processed(item))] = item
                await self._wait(running)
                self._report(results, running)
            back = await self._end(results, running)
            with self.worker_timer("offload"):
                await self.offload()
            return back
        finally:
            # After an error only: `_end` leaves none.
            for task in running:
                task.cancel()
            self._leaving, self._inbox = None, ()
            await self.device_lock.__aexit__(None, None, None)

    async def assign(self, key: str, items: Sequence[Item]) -> None:
        """Gives it items of a step; returns at once.

        Args:
            key: of the step; results go there.
            items: to work on.
        """
        self._key = key
        self._inbox = [*self._inbox, *items]
        self._wake()

    async def leave(self) -> None:
        """Asks it to leave its device; `serve` then returns."""
        if self._leaving is not None:
            self._leaving.set()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.set()

    async def _wait(self, running: dict[asyncio.Task[Item], Item]) -> None:
        """Until an item is done, or somebody calls."""
        assert self._woken is not None
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait([woken, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        # Nothing is awaited from here to the next look at the inbox, so that no wake-up is lost.
        self._woken.clear()

    async def _processed(self, item: Item) -> Item:
        # Both versions, so that the lender refuses an item under which the weights have changed.
        before = self.version
        found = await self.process(item)
        return replace(found, versions=found.versions | {before, self.version})

    def _report(self, results: Channel, running: dict[asyncio.Task[Item], Item]) -> list[Item]:
        """Takes what has ended out of `running`; sends what is done, and returns what was cut."""
        cut: list[Item] = []
        for task in [task for task in running if task.done()]:
            del running[task]
            item = task.result()
            if item.finished:
                # In the background: a wait for room would hold up all other items of this event loop.
                results.put(Result(stage=self.group_name, device=self.devices[0], item=item), key=self._key, async_op=True)
            else:
                cut.append(item)
        return cut

    async def _end(self, results: Channel, running: dict[asyncio.Task[Item], Item]) -> list[Item]:
        """Stops what runs; returns that and what was not begun."""
        self.interrupt()
        if running:
            await asyncio.wait(running)
        return [*self._report(results, running), *self._inbox]
