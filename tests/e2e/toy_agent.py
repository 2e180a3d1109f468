"""A task, a tool and a workflow, so that a run of agents starts at once and calls its tool without having learned it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.agents import AgentTask, Episode, Generate, ToolCall
from rlinf.core.language.problems import Problem, Split


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


async def asking(task: AgentTask, generate: Generate) -> Episode:
    """Calls the tool with what the model has written, whatever that is, and lets it read the result."""
    chat = task.conversation()
    turn = await generate(chat)
    chat.add(await task.tools.call_all([ToolCall(name="t", arguments={"x": turn.text[:3]})]))
    last = await generate(chat)
    return Episode(branches=(chat.closed(),), finish="stop", answer=last.text)


async def programs(task: AgentTask, generate: Generate) -> Episode:
    """Runs the right program and hands it in, but on every other problem one that fails a case, in the wrong shape."""
    chat = task.conversation()
    await generate(chat)
    right = task.problem.id % 2 == 0
    row = task.problem.row
    program = f"def f(x):return x*{row['factor']}+{row['constant']}"
    (result,) = await task.tools.call_all([ToolCall(name="python", arguments={"code": f"{program}\nprint(f(3))"})])
    if result.outcome != "ok":
        raise RuntimeError(result.text)
    block = f"```python\n{program if right else program + '+(x==0)'}\n```"
    return Episode(branches=(chat.closed(),), finish="stop", answer=f"<answer>\n{block}\n</answer>" if right else block)
