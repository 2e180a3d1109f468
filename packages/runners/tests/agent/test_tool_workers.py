"""Calls of tools that run in workers of their own, and what becomes of them when a worker's process ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf.core.agents import Tool, ToolBox, ToolLimits
from rlinf.core.errors import RLinfError
from rlinf.core.language.tool_calls import ToolCall, ToolResult
from rlinf.runners.agent.tool_worker import RemoteTools, ToolWorker
from rlinf.runners.reasoning.topology import Channels

ANYTHING = ToolLimits()


class Queues:
    """A channel within one event loop."""

    def __init__(self) -> None:
        self._queues: dict[Any, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)

    async def put(self, item: Any, *, key: Any, async_op: bool) -> None:
        assert async_op
        await self._queues[key].put(item)

    async def get(self, *, key: Any, async_op: bool) -> Any:
        assert async_op
        item = await self._queues[key].get()
        if isinstance(item, Exception):
            raise item
        return item


@dataclass
class Machine:
    """One rollout worker's view of some tool workers."""

    channels: Channels
    remote: RemoteTools
    box: ToolBox
    serve: Callable[[int], asyncio.Task[int]]
    """Starts the process of a tool worker."""
    told: list[str]
    """What tool workers say of the processes before theirs."""


Play = Callable[[Machine], Coroutine[Any, Any, None]]


def played(play: Play, function: Callable[..., Any], limits: ToolLimits = ANYTHING, ranks: int = 1) -> None:
    """Plays a scene in which calls of one tool are made elsewhere."""

    async def scene() -> None:
        tool = Tool.of(function, name="t")
        names = ("completions", "trajectories", "reference_requests", "references", "tool_calls", "tool_answers")
        channels = Channels(**{name: cast("Any", Queues()) for name in names})
        here, told = ToolBox([(tool, limits)]), list[str]()
        remote = RemoteTools("job", 0, ranks, channels, resends=1, keeps=here.keeps)

        def serve(rank: int) -> asyncio.Task[int]:
            section = SimpleNamespace(agent=SimpleNamespace(toolbox=lambda: ToolBox([(tool, limits)])))
            worker: Any = ToolWorker(cast("Any", section))
            worker._context = SimpleNamespace(rank=rank)
            worker.log_warning = told.append
            return asyncio.ensure_future(worker.serve("job", 1, channels))

        reading = asyncio.ensure_future(remote.read())
        try:
            async with asyncio.timeout(60):
                await play(Machine(channels, remote, here.elsewhere(remote.call), serve, told))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(scene())


def call(text: str) -> ToolCall:
    return ToolCall(name="t", arguments={"x": text})


async def ended(process: asyncio.Task[Any]) -> None:
    """As if it had been killed."""
    process.cancel()
    await asyncio.gather(process, return_exceptions=True)


def test_calls_are_made_elsewhere_with_the_limits_of_each_tool() -> None:
    counted: list[str] = []

    def once(x: str) -> str:
        """Says it twice."""
        counted.append(x)
        if len(counted) == 1:
            raise ConnectionError
        return x + x

    async def play(machine: Machine) -> None:
        machine.serve(0)
        assert await machine.box.call(call("a")) == ToolResult(text="aa", name="t")
        assert counted == ["a", "a"], "repeated by the worker"
        again = await machine.box.call(call("a"))
        assert (again.text, again.cached, len(counted)) == ("aa", True, 2)
        wrong = await machine.box.call(ToolCall(name="t", arguments={"y": 1}))
        assert wrong.outcome == "arguments"

    played(play, once, ToolLimits(retries=1, cache=8))


def test_many_calls_run_at_a_time_and_a_slow_one_times_out_alone() -> None:
    async def slow(x: str) -> str:
        """Takes as long as it says."""
        await asyncio.sleep(30 if x == "long" else 0)
        return x

    async def play(machine: Machine) -> None:
        machine.serve(0)
        machine.serve(1)
        results = await machine.box.call_all([call(text) for text in ("long", "b", "c", "d")])
        assert [result.outcome for result in results] == ["timeout", "ok", "ok", "ok"]
        assert [result.text for result in results[1:]] == ["b", "c", "d"]

    played(play, slow, ToolLimits(timeout_s=1.0), ranks=2)


def test_a_call_whose_process_ends_is_made_again_and_one_that_waited_is_made_once() -> None:
    """The second call was still in its queue: it is sent again, too, and the new process passes over the copy."""
    runs: list[str] = []

    async def hangs_at_first(x: str) -> str:
        """Says it back."""
        runs.append(x)
        if runs.count("a") == 1 and x == "a":
            await asyncio.sleep(30)
        return x

    async def play(machine: Machine) -> None:
        process = machine.serve(0)
        first = asyncio.ensure_future(machine.box.call(call("a")))
        while not runs:
            await asyncio.sleep(0)
        await ended(process)
        waited = asyncio.ensure_future(machine.box.call(call("b")))
        await asyncio.sleep(0.01)
        machine.serve(0)
        assert await first == ToolResult(text="a", name="t", resent=1)
        assert (await waited).text == "b"
        assert sorted(runs) == ["a", "a", "b"]
        assert machine.told == ["the process before this one ended with calls that it had not answered: 't' (2)"]

    played(play, hangs_at_first)


def test_a_call_that_ends_every_process_is_lost_and_the_model_is_told() -> None:
    runs: list[str] = []

    async def hangs(x: str) -> str:
        """Never answers."""
        runs.append(x)
        await asyncio.sleep(30)
        return x

    async def play(machine: Machine) -> None:
        process = machine.serve(0)
        asked = asyncio.ensure_future(machine.box.call(call("a")))
        for count in (1, 2):
            while len(runs) < count:
                await asyncio.sleep(0)
            await ended(process)
            process = machine.serve(0)
        result = await asked
        assert (result.outcome, result.resent) == ("lost", 1)
        assert result.text == "error: the process of 't' ended during the call, 2 times"

    played(play, hangs)


def test_calls_fail_with_the_way_to_the_workers() -> None:
    def never(x: str) -> str:
        """Is not reached."""
        return x

    async def play(machine: Machine) -> None:
        asked = asyncio.ensure_future(machine.box.call(call("a")))
        await asyncio.sleep(0)
        await machine.channels.tool_answers.put(RLinfError("channel", "is closed"), key="job/0", async_op=True)
        for attempt in (asked, machine.box.call(call("b"))):
            with pytest.raises(RLinfError, match="is closed"):
                await attempt

    played(play, never)


def test_a_tool_that_is_bound_runs_here() -> None:
    def elsewhere(x: str) -> str:
        """Runs nowhere."""
        raise AssertionError(x)

    async def play(machine: Machine) -> None:
        result = await machine.box.bound("t", "here {x}".format).call(call("a"))
        assert result.text == "here a"

    played(play, elsewhere)
