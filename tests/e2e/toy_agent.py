"""A task, a tool and a workflow, so that a run of agents starts at once and calls its tool without having learned it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.agents import AgentTask, Episode, Generate
from rlinf.core.problems import Problem, Split


@dataclass(frozen=True)
class Digits:
    """Say a digit."""

    count: int = 24

    def check(self, place: str) -> None: ...

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(prompt=f"{n}=" if split == "train" else f"{n}+", answer=str(n % 10), id=n) for n in range(self.count)]


def double(x: str) -> str:
    """Says it twice."""
    return f"{x}{x}"[:6]


async def unreliable(task: AgentTask, generate: Generate) -> Episode:
    """Fails on every third problem, after a turn."""
    chat = task.conversation()
    turn = await generate(chat)
    if task.problem.id % 3 == 0:
        raise ConnectionError("the service is gone")
    return Episode(branches=(chat.closed(),), finish="stop", answer=turn.text)
