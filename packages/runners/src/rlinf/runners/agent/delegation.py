"""Several agents in one episode: a lead agent hands subtasks to agents that work at the same time.

lead      turn ─► delegate(a, b, c) ─────────────────────────────────► answers ─► turn ─► answer of the episode
lead.1            └─► a: turn ─► tool ─► turn ─► answer ─┐               ▲
lead.2            └─► b: turn ─► answer ─────────────────┼───────────────┘
lead.3            └─► c: turn ─► tool ─► turn ─► answer ─┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlinf.core.agents import AgentTask, Conversation, Episode, EpisodeFinish, Generate, Tool, ToolBox, ToolError
from rlinf.core.errors import ConfigError
from rlinf.runners.agent.playing import OutOfContext
from rlinf.runners.config.schema import not_negative, positive

NAME = "delegate"
"""By which the model hands subtasks on."""
LEAD = "lead"
"""The first agent; those that it starts are `lead.1`, `lead.2`, …, and theirs `lead.1.1`, …"""


async def delegate(subtasks: str) -> str:
    """Hands subtasks to agents that work on them at the same time, and tells what each of them answers.

    Args:
        subtasks: one in each line; an agent knows no more than its line.
    """
    raise ToolError(f"nobody takes {subtasks[:40]!r}: only the workflow '{NAME}' has agents")


@dataclass(frozen=True, slots=True)
class DelegateTool:
    """What the workflow `delegate` is told to delegate by: `agent.tools: [{type: delegate}]`."""

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def build(self) -> Tool:
        """The tool; the workflow says what it does."""
        return Tool.of(delegate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegate:
    """Agents that use tools and hand subtasks to further agents, by name: `agent.workflow_type: delegate`.

    Each agent is a conversation of its own, and one row of what is trained on. A turn without a call is its answer; that of the
    lead is the answer of the episode. What goes beyond a bound is refused with a message to the model. Multi-agent systems for wide
    search: Xu et al., "WideSeek-R1: Exploring Width Scaling for Broad Information Seeking via Multi-Agent Reinforcement Learning"
    (2026), arXiv:2602.04634, whose lead agent and sub-agents are one model, trained together, too.
    """

    max_width: int = 8
    """Agents that one turn starts; 0 for an agent that works alone."""
    max_depth: int = 1
    """How often agents hand on what was handed to them: with 1 only the lead does."""
    max_agents: int = 64
    """Agents of one episode, the lead among them."""
    lead_tools: tuple[str, ...] | None = None
    """The tools that the lead may call by itself beside `delegate`; null for all."""
    sub_prompt: str = "{subtask}"
    """With which the conversation of another agent begins."""
    sub_turns: int | None = None
    """How many turns another agent may have; null for `agent.max_turns`."""
    sub_result: str = "[{number}] {answer}"
    """The line that tells what an agent answered, in the order of subtasks, counted from 1."""

    def __post_init__(self) -> None:
        positive(max_agents=self.max_agents, sub_turns=self.sub_turns)
        not_negative(max_width=self.max_width, max_depth=self.max_depth)
        for name, text, known in (
            ("sub_prompt", self.sub_prompt, {"subtask": ""}),
            ("sub_result", self.sub_result, {"number": 1, "answer": ""}),
        ):
            _check_form(name, text, known)

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """Plays one episode; its branches are those of the agents, by their names."""
        agents = _Agents(self, task, generate)
        finish, answer = await agents.work(LEAD, None, 0)
        # Not in the order in which they began, which depends on how long tools took.
        chats = [agents.chats[name] for name in sorted(agents.chats, key=_place)]
        return Episode(branches=tuple(chat.closed() for chat in chats if chat.turns), finish=finish, answer=answer)


@dataclass(slots=True)
class _Agents:
    """The agents of one episode."""

    config: Delegate
    task: AgentTask
    generate: Generate
    chats: dict[str, Conversation] = field(default_factory=dict[str, Conversation])
    """That of each agent."""
    count: int = 1
    """Agents so far, the lead among them, whether or not they have begun."""
    fault: Exception | None = None
    """What an agent failed with that no message to a model can mend."""

    async def work(self, name: str, subtask: str | None, depth: int) -> tuple[EpisodeFinish, str]:
        """One agent, until it answers; how it ended, and the answer.

        Args:
            name: of the agent.
            subtask: what it is given; None for the problem itself.
            depth: how often that was handed on.
        """
        delegation = _Delegation(self, name, depth)
        tools = self._tools(delegation, depth)
        prompt = None if subtask is None else self.config.sub_prompt.format(subtask=subtask)
        chat = self.task.conversation(name, prompt=prompt, tools=tools)
        self.chats[name] = chat
        turns = self.task.max_turns if subtask is None else self.config.sub_turns or self.task.max_turns
        for number in range(turns):
            turn = await self.generate(chat)
            if not turn.calls:
                return "length" if turn.completion.finish == "length" else "stop", turn.text
            # Nobody would read the answers to calls of the last turn.
            if number + 1 < turns:
                delegation.started = 0
                results = await tools.call_all(turn.calls)
                if self.fault is not None:
                    raise self.fault
                chat.add(results)
        return "turns", ""

    def _tools(self, delegation: _Delegation, depth: int) -> ToolBox:
        """What an agent may call."""
        tools, own = self.task.tools, self.config.lead_tools
        if depth == 0 and own is not None:
            tools = tools.only({NAME, *own})
        return tools.bound(NAME, delegation.hand_on)


@dataclass(slots=True)
class _Delegation:
    """What one agent hands on."""

    agents: _Agents
    name: str
    depth: int
    started: int = 0
    """Agents that its present turn has started."""
    names: int = 0
    """Agents that it has started in all."""

    async def hand_on(self, subtasks: str) -> str:
        """What agents answered to these subtasks.

        Raises:
            ToolError: there are none, or more than the bounds allow.
        """
        given = [line.strip() for line in subtasks.splitlines() if line.strip()]
        # Nothing is awaited between the check and the counts below: the calls of one turn run at the same time.
        self._check(len(given))
        self.started += len(given)
        names = [f"{self.name}.{self.names + place}" for place in range(1, len(given) + 1)]
        self.names, self.agents.count = self.names + len(given), self.agents.count + len(given)
        # When one fails the others end, too: they would write on into what the next attempt counts.
        async with asyncio.TaskGroup() as working:
            answers = [working.create_task(self._answer(name, subtask)) for name, subtask in zip(names, given, strict=True)]
        form = self.agents.config.sub_result
        return "\n".join(form.format(number=number, answer=task.result()) for number, task in enumerate(answers, start=1))

    def _check(self, count: int) -> None:
        config = self.agents.config
        free = config.max_agents - self.agents.count
        if not count:
            raise ToolError("expected a subtask in each line, found none")
        if not config.max_width or not config.max_depth:
            raise ToolError("nobody else works here, do it yourself")
        if self.depth >= config.max_depth:
            raise ToolError("what was handed to you can't be handed on, do it yourself")
        if self.started + count > config.max_width:
            raise ToolError(f"expected at most {config.max_width} subtasks in a turn, found {self.started + count}")
        if count > free:
            raise ToolError(f"at most {free} more agents can be started, found {count} subtasks")

    async def _answer(self, agent: str, subtask: str) -> str:
        """An agent's answer; what it fails with ends the episode, since a tool would make it a message."""
        try:
            finish, answer = await self.agents.work(agent, subtask, self.depth + 1)
        except OutOfContext:
            return "error: no room for an answer"
        except Exception as error:
            self.agents.fault = self.agents.fault or error
            raise
        return answer if finish == "stop" else f"error: no answer, {finish}"


def _place(name: str) -> tuple[int, ...]:
    """Where an agent stands: the lead, those that it started, each with its own behind it."""
    # As texts, lead.10 comes before lead.2.
    return tuple(map(int, name.split(".")[1:]))


def _check_form(name: str, text: str, known: Mapping[str, object]) -> None:
    fill: Callable[..., str] = text.format
    try:
        fill(**known)
    except (KeyError, IndexError, ValueError) as error:
        expected = ", ".join(f"{{{key}}}" for key in known)
        raise ConfigError(name, f"expected a text with {expected}, found {text!r} ({error})", "Double other braces.") from None
