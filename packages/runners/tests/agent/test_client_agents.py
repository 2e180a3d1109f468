"""What a function of the user's own is called with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
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
    assert asyncio.run(ClientAgent(agent="toy_asks").run(task, "http://127.0.0.1", "key", "policy")) == "42"


def test_a_function_is_told_the_name_that_the_endpoint_gives_the_model() -> None:
    async def opened(generate: Any) -> Any:
        return SimpleNamespace(base_url="http://127.0.0.1", api_key="key", model="mine", failure=None, branches=tuple)

    def episode(finish: str, **found: Any) -> Any:
        return found["answer"]

    def named(model: str) -> str:
        return model

    AGENTS.register("toy_names")(named)
    task: Any = SimpleNamespace(session=opened, episode=episode)
    generate: Any = None
    assert asyncio.run(ClientAgent(agent="toy_names")(task, generate)) == "mine"
