"""`ToolWorker`: a process in which tools run, for all rollout workers; and `RemoteTools`, with which they call them.

rollout ──ToolRequest──► tool worker ──► tools ──ToolAnswer──► rollout
                         (starts) ──ToolWorkerStarted──► rollout, which sends again what it still waits for,
                                                                  behind the LostCalls of the process before
"""

from __future__ import annotations

import asyncio
import json
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rlinf.core.agents import ToolBox
from rlinf.core.language.tool_calls import ToolCall, ToolResult
from rlinf.core.worker import Worker, idempotent
from rlinf.runners.agent.schema import AgentConfig
from rlinf.runners.reasoning.topology import Channels, queue_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A call that a rollout worker asks for."""

    id: str
    """Of this call alone, however often it is sent."""
    rollout: int
    """The rollout worker that waits for the answer."""
    call: ToolCall
    """What is called, with arguments that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCalls:
    """What a process had not answered when it ended: one of these tools may end it each time, and at last the run."""

    tools: Mapping[str, int]
    """How many calls, by tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What became of a request."""

    id: str
    """That of the request."""
    result: ToolResult
    """What the model is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWorkerStarted:
    """A tool worker begins to serve a job; a second one of its rank says that the process before it has ended."""

    rank: int
    """Of the tool worker."""
    process: str
    """Another one for each process."""


class ToolWorker(Worker):
    """All tools of a run but those that its workflow binds, with the limits that `agent.tools` names.

    Args:
        cfg: the configuration of the run.
    """

    def __init__(self, cfg: AgentConfig) -> None:
        self.cfg = cfg
        self._process = uuid.uuid4().hex

    @idempotent
    async def serve(self, job: str, rollout_ranks: int, channels: Channels) -> int:
        """Makes calls, many at a time, until the runner puts None behind the last one.

        Args:
            job: the key of the job to which the calls belong.
            rollout_ranks: how many rollout workers send calls.
            channels: `tool_calls` brings requests, `tool_answers` takes what became of them.

        Returns:
            How many calls it made.
        """
        # Sent before the first request is taken, so that whoever waits for this rank learns that its requests may be lost.
        started = ToolWorkerStarted(rank=self.rank, process=self._process)
        for rollout in range(rollout_ranks):
            await channels.tool_answers.put(started, key=queue_name(job, rollout), async_op=True)
        seen, running = set[str](), set[asyncio.Task[None]]()
        try:
            while True:
                request: ToolRequest | LostCalls | None = await channels.tool_calls.get(
                    key=queue_name(job, self.rank), async_op=True
                )
                if request is None:
                    # Calls that still run are for nobody: whoever asked has ended.
                    return len(seen)
                if isinstance(request, LostCalls):
                    # By the worker itself: the last lines of its own log are shown with the error that ends the run.
                    told = ", ".join(f"'{name}' ({count})" for name, count in request.tools.items())
                    self.log_warning(f"the process before this one ended with calls that it had not answered: {told}")
                # What waited in the queue when the process before this one ended is sent again all the same.
                elif request.id not in seen:
                    seen.add(request.id)
                    task = asyncio.ensure_future(self._answer(request, job, channels))
                    running.add(task)
                    task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()

    async def _answer(self, request: ToolRequest, job: str, channels: Channels) -> None:
        result = await self._tools.call(request.call)
        answer = ToolAnswer(id=request.id, result=result)
        await channels.tool_answers.put(answer, key=queue_name(job, request.rollout), async_op=True)

    @cached_property
    def _tools(self) -> ToolBox:
        return self.cfg.agent.toolbox()


@dataclass(slots=True)
class _Waiting:
    """A call whose answer has not come yet."""

    request: ToolRequest
    rank: int
    """The tool worker that makes it."""
    answer: asyncio.Future[ToolResult]
    resent: int = 0


class RemoteTools:
    """Sends the calls of one job to tool workers, and again where a worker's process ended under them.

    Args:
        job: its key.
        rollout: the rank of the rollout worker that asks.
        tool_ranks: how many tool workers there are.
        channels: the way to them.
        resends: how often a call is sent again; then the model is told that it was lost.
        keeps: whether answers of the tool of a name are kept, so that the same call goes to the same worker.
    """

    def __init__(
        self,
        job: str,
        rollout: int,
        tool_ranks: int,
        channels: Channels,
        *,
        resends: int,
        keeps: Callable[[str], bool],
    ) -> None:
        self._job, self._rollout, self._ranks, self._channels = job, rollout, tool_ranks, channels
        self._resends, self._keeps = resends, keeps
        # Answers to a worker that died in this place must not be taken for answers to this one.
        self._name, self._count = uuid.uuid4().hex, 0
        self._waiting: dict[str, _Waiting] = {}
        self._processes: dict[int, str] = {}
        self._failure: BaseException | None = None

    async def call(self, call: ToolCall) -> ToolResult:
        """What became of a call.

        Raises:
            RLinfError: the way to the tool workers is closed.
        """
        if self._failure is not None:
            raise self._failure
        self._count += 1
        request = ToolRequest(id=f"{self._name}/{self._count}", rollout=self._rollout, call=call)
        waiting = _Waiting(request, self._rank(call), asyncio.get_running_loop().create_future())
        self._waiting[request.id] = waiting
        try:
            await self._send(waiting)
            return replace(await waiting.answer, resent=waiting.resent)
        finally:
            del self._waiting[request.id]

    async def read(self) -> None:
        """Takes answers until it is cancelled; calls fail with what it fails with."""
        try:
            while True:
                item = await self._channels.tool_answers.get(key=queue_name(self._job, self._rollout), async_op=True)
                if isinstance(item, ToolWorkerStarted):
                    await self._started(item)
                elif isinstance(item, ToolAnswer) and item.id in self._waiting:
                    _settle(self._waiting[item.id], item.result)
        # Whatever ends the reading, whoever waits for an answer must not wait for ever.
        except BaseException as error:
            self._failure = error
            for waiting in self._waiting.values():
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            raise

    async def _started(self, item: ToolWorkerStarted) -> None:
        """Sends again what a new process of a tool worker may not have; it passes over what it has."""
        before, self._processes[item.rank] = self._processes.get(item.rank), item.process
        # Under the first process of a rank no call can have been lost.
        ended = before not in (None, item.process)
        unanswered = [each for each in self._waiting.values() if each.rank == item.rank and not each.answer.done()]
        if ended and unanswered:
            calls = Counter(waiting.request.call.name for waiting in unanswered)
            lost = LostCalls(tools=dict(calls.most_common()))
            await self._channels.tool_calls.put(lost, key=queue_name(self._job, item.rank), async_op=True)
        for waiting in unanswered:
            if ended:
                if waiting.resent == self._resends:
                    _settle(waiting, _lost(waiting))
                    continue
                waiting.resent += 1
            await self._send(waiting)

    async def _send(self, waiting: _Waiting) -> None:
        await self._channels.tool_calls.put(waiting.request, key=queue_name(self._job, waiting.rank), async_op=True)

    def _rank(self, call: ToolCall) -> int:
        """The worker that has kept the answer if one has, or else the one with the fewest calls."""
        if self._keeps(call.name):
            written = json.dumps([call.name, dict(call.arguments)], sort_keys=True, default=str)
            # Not by `hash`, which is another one for texts in every process.
            return zlib.crc32(written.encode()) % self._ranks
        busy = Counter(waiting.rank for waiting in self._waiting.values())
        # Of equals the next one from its own rank on, so that rollout workers do not all begin with the first.
        return min(range(self._ranks), key=lambda rank: (busy[rank], (rank - self._rollout) % self._ranks))


def _settle(waiting: _Waiting, result: ToolResult) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(result)


def _lost(waiting: _Waiting) -> ToolResult:
    name, times = waiting.request.call.name, waiting.resent + 1
    text = f"error: the process of '{name}' ended during the call, {times} times"
    return ToolResult(text=text, outcome="lost", name=name)
