"""Agents that know nothing but an OpenAI client, as somebody would write them who has never heard of training."""

from __future__ import annotations

import json
from typing import Any

import openai


async def calculates(task: Any, client: openai.AsyncOpenAI) -> str:
    """Lets the model call tools until it answers."""
    prompt = task.problem.prompt
    messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    tools: Any = [tool.schema for tool in task.tools.tools]
    by_name = {tool.name: tool.function for tool in task.tools.tools}
    while True:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.type == "function"
            text = str(by_name[call.function.name](**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


async def asks_twice(task: Any, client: openai.AsyncOpenAI) -> str:
    """Two turns, whatever the model says."""
    messages: list[Any] = [{"role": "user", "content": task.problem.prompt}]
    for _ in range(2):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "again "}]
    return answer.choices[0].message.content or ""


def blocks(client: openai.OpenAI, task: Any, session: Any) -> tuple[str, float]:
    """Not async; asks once, rewards its turn, and says what the episode is worth."""
    answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task.problem.prompt}])
    session.reward(-0.25)
    return answer.choices[0].message.content or "", 0.5


async def asks_for_ever(client: openai.AsyncOpenAI) -> str:
    """Never has an answer."""
    while True:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1"}])


async def fails(client: openai.AsyncOpenAI) -> str:
    """Fails for a reason of its own, after a turn."""
    await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1"}])
    raise ConnectionError("the service is gone")


async def wants(weather: str) -> str:
    """Asks for what nobody has."""
    return weather
