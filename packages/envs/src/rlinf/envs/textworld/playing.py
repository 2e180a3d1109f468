"""A text game played turn by turn: what the model writes is the command, what the game says is what it reads."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.agents import AgentTask, Episode, Generate, Tool, ToolError
from rlinf.core.errors import ConfigError
from rlinf.envs.textworld.games import COMMAND, House


async def do(command: str) -> str:
    """Gives a command to the game, and tells what comes of it.

    Args:
        command: such as `go north` or `take lamp`.
    """
    raise ToolError(f"nobody takes {command[:40]!r}: only the workflow 'textworld' plays")


@dataclass(frozen=True, slots=True)
class CommandTool:
    """What the model gives commands by: `agent.tools: [{type: textworld}]`."""

    def check(self, place: str) -> None:
        """Nothing has to be installed."""

    def build(self) -> Tool:
        """The tool; the workflow says what it does."""
        return Tool.of(do, inline=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayTextWorld:
    """Plays a game of the task `textworld`, by name: `agent.workflow_type: textworld`; the reward is 1 for a game that was won."""

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """Plays until the game is won, `agent.max_turns` commands were given, or a turn gives none.

        Raises:
            ConfigError: the problem is no game, or the run lacks the tool.
        """
        from rlinf.envs.textworld._textworld import Game

        game = Game(_house(task))
        chat = task.conversation()

        async def play(command: str) -> str:
            return game.play(command)

        tools = task.tools.bound(COMMAND, play)
        text, finish = "", "turns"
        for number in range(task.max_turns):
            turn = await generate(chat)
            text = turn.text
            if not turn.calls:
                finish = "length" if turn.completion.finish == "length" else "stop"
                break
            results = await tools.call_all(turn.calls)
            if game.won or number + 1 == task.max_turns:
                finish = "stop" if game.won else "turns"
                break
            chat.add(results)
        return Episode(branches=(chat.closed(),), finish=finish, answer=text, reward=float(game.won))


def _house(task: AgentTask) -> House:
    found = task.problem.row.get("textworld")
    if not isinstance(found, House):
        raise ConfigError("agent.workflow_type", "expected problems of data.type textworld", "Choose another workflow.")
    if COMMAND not in (tool.name for tool in task.tools.tools):
        raise ConfigError("agent.tools", f"no tool '{COMMAND}' to give commands by", "Add {type: textworld}.")
    return found
