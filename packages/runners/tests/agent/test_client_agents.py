"""What a function of the user's own is called with."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf.core.registry import AGENTS
from rlinf.runners.agent.client_agents import ClientAgent


class Asks:
    """A function with settings, as objects are."""

    async def __call__(self, task: Any) -> str:
        return task


AGENTS.register("toy_asks")(Asks())


def test_an_object_that_is_called_like_an_async_function_is_awaited() -> None:
    task: Any = "42"
    assert asyncio.run(ClientAgent(agent="toy_asks").run(task, "http://127.0.0.1", "key")) == "42"
