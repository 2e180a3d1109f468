"""An agent of the library smolagents as it is: `agent.workflow_type: client`, `agent.agent: smolagents`."""

from __future__ import annotations

import asyncio

from rlinf.core.agents import AgentTask, ToolCall
from rlinf.core.agents.own_thread import in_own_thread
from rlinf.core.registry import require_modules


async def tool_calling_agent(task: AgentTask, base_url: str, api_key: str, model: str) -> str:
    """A `smolagents.ToolCallingAgent` with the tools of the run; its `final_answer` is the answer.

    It writes its history anew for each step, so each of its turns is a row of its own. Its `CodeAgent` is not offered, for it runs
    what a model wrote in this process.

    Args:
        task: the problem, and the tools that may be called.
        base_url: of the session.
        api_key: of the session.
        model: the name that is asked for.

    Raises:
        MissingExtra: smolagents is not installed.
    """
    require_modules("smolagents", place="agent.agent", extra="rlinf-runners[smolagents]")
    from rlinf.runners.agent._smolagents import run_agent

    loop = asyncio.get_running_loop()

    def call(name: str, arguments: dict[str, object]) -> str:
        """The answer of a tool, on the event loop that has its limits."""
        # The tool's deadline ends it. Should the loop end first, this thread is nobody's: a daemon, which keeps no process.
        (result,) = asyncio.run_coroutine_threadsafe(task.tools.call_all([ToolCall(name=name, arguments=arguments)]), loop).result()
        return result.text

    return await in_own_thread(lambda: run_agent(task, base_url, api_key, model, call), name="smolagents")
