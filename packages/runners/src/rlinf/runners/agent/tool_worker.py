"""`ToolWorker`: a process in which tools run, for all rollout workers.

rollout ──ToolRequest──► tool worker ──► tools ──ToolAnswer──► rollout
                         (starts) ──ToolWorkerStarted──► rollout, which sends again what it still waits for
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from functools import cached_property

from rlinf.core.agents import ToolBox
from rlinf.core.tool_calls import ToolCall, ToolResult
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
                request: ToolRequest | None = await channels.tool_calls.get(key=queue_name(job, self.rank), async_op=True)
                if request is None:
                    return len(seen)
                # What waited in the queue when the process before this one ended is sent again all the same.
                if request.id not in seen:
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
