"""Workflows that are registered by name."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.agents import AgentTask, Episode, Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTools:
    """A model that calls tools until it answers, by name: `agent.workflow_type: tools`. A turn without a call is the answer."""

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """Plays one episode."""
        chat = task.conversation()
        for number in range(task.max_turns):
            turn = await generate(chat)
            if not turn.calls:
                finish = "length" if turn.completion.finish == "length" else "stop"
                return Episode(branches=(chat.closed(),), finish=finish, answer=turn.text)
            # Nobody would read the answers to calls of the last turn.
            if number + 1 < task.max_turns:
                chat.add(await task.tools.call_all(turn.calls))
        return Episode(branches=(chat.closed(),), finish="turns")
