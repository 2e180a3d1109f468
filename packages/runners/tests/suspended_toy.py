"""Episodes of two turns around a tool that can be held up, and the rollout workers that play them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

from reasoning_toy import channels, job_of

from rlinf.core.agents import AgentTask, Episode, Generate, Tool, ToolCall
from rlinf.core.data import Weights
from rlinf.core.registry import TOOL_FORMATS, TOOLS, WORKFLOWS
from rlinf.runners.agent.rollout_worker import AgentRolloutWorker
from rlinf.runners.agent.rules import read_agent
from rlinf.runners.reasoning.generation.admission import GroupReport, Response
from rlinf.runners.reasoning.generation.jobs import JobResult
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec
from rlinf.runners.reasoning.generation.rollout import Generated
from rlinf.runners.reasoning.generation.running import GenerationJob
from rlinf.runners.reasoning.topology import ReasoningTopology

SLOW = "4"
"""The tool takes its time with what the group of this number asks."""


@dataclass(frozen=True)
class NoFormat:
    role: Any = "user"

    def check(self, place: str) -> None: ...

    def stops(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return ()

    def instructions(self, tools: Sequence[Tool]) -> str:
        return ""

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        return ()

    def write_results(self, results: Sequence[Any]) -> str:
        return "".join(result.text for result in results)


class Waiting:
    """A tool that is held up where the test says so."""

    calls: ClassVar[list[str]] = []
    open: ClassVar[asyncio.Event] = asyncio.Event()

    @staticmethod
    async def t(x: str) -> str:
        """Says it back.

        Args:
            x: which problem it is.
        """
        Waiting.calls.append(x)
        if x == SLOW:
            await Waiting.open.wait()
        return "ab"


@dataclass(frozen=True)
class WaitingConfig:
    def check(self, place: str) -> None: ...

    def build(self) -> Tool:
        return Tool.of(Waiting.t, name="t")


@dataclass(frozen=True)
class TwoTurns:
    """Writes, asks the tool, and writes again; several agents, if so, each for itself."""

    agents: int = 1

    def check(self, place: str) -> None: ...

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        async def one(agent: str) -> Any:
            chat = task.conversation(agent)
            await generate(chat)
            chat.add(await task.tools.call_all([ToolCall(name="t", arguments={"x": str(task.problem.id)})]))
            await generate(chat)
            return chat

        chats = await asyncio.gather(*(one(str(number) if self.agents > 1 else "") for number in range(self.agents)))
        return Episode(branches=tuple(chat.closed() for chat in chats), finish="stop", answer="")


TOOL_FORMATS.register("toy_no_format")(NoFormat)
TOOLS.register("toy_waiting")(WaitingConfig)
WORKFLOWS.register("toy_two_turns")(TwoTurns)


def agent_data(data: dict[str, Any], **agent: Any) -> dict[str, Any]:
    tools = {"tools": [{"type": "toy_waiting"}], "tool_format": {"type": "toy_no_format"}, "workflow_type": "toy_two_turns"}
    data = deepcopy(data) | {"agent": tools | agent}
    data["runner"]["task_type"] = "agent"
    data["rollout"] |= {"oversample": 1.5, "partial_lag": 1}
    return data


def agent_worker(data: dict[str, Any], rank: int = 0, ranks: int = 1) -> AgentRolloutWorker:
    worker = AgentRolloutWorker(read_agent(data))
    if ranks > 1:
        worker._context = SimpleNamespace(rank=rank, world_size=ranks, threads=1, memory=None)  # type: ignore[assignment]
    worker.init_worker(ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=ranks, reward_ranks=1))
    return worker


job = partial(job_of, longest=12)


class Scene:
    """A rollout worker that does one job after the other."""

    def __init__(self, data: dict[str, Any], new_queue: Any) -> None:
        self.channels = channels(new_queue)
        self.worker = agent_worker(data)
        self.engine: Any = self.worker.engine.generator

    async def write(self, task: JobSpec) -> tuple[Generated, dict[int, tuple[Episode, ...]]]:
        async with asyncio.timeout(200):
            found = await self.worker.generate(task, self.channels)
        channel: Any = self.channels.completions
        return found, {item.prompt_group.group: item.completions for item in channel.items.get(f"{task.key}/0", [])}

    async def update(self, version: int) -> None:
        await self.worker._take(Weights(tensors={}, version=version))


class Workers:
    """Two rollout workers on one event loop, and reports of what they write."""

    scalars: ClassVar = {"rollout/restarts": 0.0}

    def __init__(self, data: dict[str, Any], new_queue: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.channels = channels(new_queue)
        self.workers = [agent_worker(data, rank, 2) for rank in range(2)]
        self.sent: dict[int, tuple[Episode, ...]] = {}

    def start(self, task: JobSpec) -> GenerationJob:
        calls: Any = [
            self.loop.create_task(worker.generate(task.for_worker(rank, 2), self.channels))
            for rank, worker in enumerate(self.workers)
        ]
        return GenerationJob(task, calls)

    def finish(self, running: GenerationJob) -> JobResult:
        handles: Any = running.handles
        generated = self.loop.run_until_complete(asyncio.wait_for(asyncio.gather(*handles), 200))
        channel: Any = self.channels.completions
        reports: list[GroupReport] = []
        for item in channel.items.pop(f"{running.job.key}/0", []):
            group, episodes = item.prompt_group.group, item.completions
            assert group not in self.sent, "a group was sent twice"
            self.sent[group] = episodes
            responses = tuple(Response(reward=1.0, success=True, tokens=len(e), finish=e.finish) for e in episodes)
            oldest = min(e.oldest for e in episodes)
            reports.append(GroupReport(group=group, problem=item.prompt_group.problem, responses=responses, oldest=oldest))
        assert len(reports) == running.job.needed
        return JobResult(reports=reports, generated=generated)

    def update(self, version: int) -> None:
        for worker in self.workers:
            self.loop.run_until_complete(worker._take(Weights(tensors={}, version=version)))

    def close(self) -> None:
        async def closed() -> None:
            for worker in self.workers:
                await worker.close()
            await asyncio.sleep(0)

        self.loop.run_until_complete(closed())
        self.loop.close()
