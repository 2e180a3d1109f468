"""An agent that knows only an OpenAI client, played with a model that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.core.agents import Episode, SessionConfig, ToolBox
from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Message, Problem
from rlinf.core.registry import TOOLS
from rlinf.engines.endpoint import OpenAIEndpointConfig
from rlinf.models.language.tool_calls import HermesFormat
from rlinf.runners.agent import episode_rows
from rlinf.runners.agent.client_agents import ClientAgent
from rlinf.runners.agent.episode_groups import EpisodeGroup
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.tool_use import ToolFormatSection


class Letters:
    """A tokenizer of single characters; its chat template is that of most models, in short."""

    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return 2000

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1 if letter == "$" else ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join("$" if token == 1 else chr(token) for token in token_ids if token > 1 or not skip_special_tokens)

    def apply_chat_template(self, conversation: Sequence[Message], *, tokenize: bool, add_generation_prompt: bool) -> str:
        said = (f"{m['role']}:{m['content']}" + ("$" if m["role"] == "assistant" else "") + "\n" for m in conversation)
        return "".join(said) + "assistant:"

    def save_pretrained(self, save_directory: str) -> None: ...


TOKENIZER: Any = Letters()


class Scripted:
    """A generator that says what it is told to; each turn is of the next weights."""

    def __init__(self, *says: Any, context_length: int | None = None) -> None:
        self.says, self.version, self.context_length, self.asked = list(says), 0, context_length, list[str]()

    async def generate(
        self, prompt: Sequence[int], sampling: Any, *, seed: int, request_id: str, partial: Any = None
    ) -> Completion[Any]:
        self.asked.append(TOKENIZER.decode(prompt))
        said = self.says.pop(0) if self.says else "1$"
        self.version += 1
        if isinstance(said, Exception):
            raise said
        tokens = np.asarray(TOKENIZER.encode(said))
        logprob = -np.arange(1, len(tokens) + 1, dtype=np.float32)
        return Completion(tokens=tokens, logprob=logprob, version=np.full(len(tokens), self.version), finish="stop")


def played(
    agent: str, generator: Any, prompt: Any = "12*7", *, problem: Problem | None = None, aborted: bool = False, **changes: Any
) -> Episode:
    """One episode of an agent with a calculator."""
    form, asked = HermesFormat(), problem or Problem(prompt=prompt, answer="84", id=0)
    workflow = ClientAgent(agent=agent)
    workflow.check("agent")
    config = AgentSection(workflow=workflow, tool_format=ToolFormatSection(format=form), **changes)
    sampling = SamplingConfig(max_new_tokens=200, stop_token_ids=(1,))

    async def run() -> Episode:
        endpoint = await OpenAIEndpointConfig().start(generator, TOKENIZER, form, session=SessionConfig(sampling=sampling))

        async def there() -> Any:
            return endpoint

        def begin(attempt: int) -> tuple[Task, TurnGenerator]:
            tools = ToolBox([TOOLS.build("calculator", {}, place="agent.tools").build()])
            task = Task(problem=asked, prompt=(), tools=tools, config=config, tokenizer=TOKENIZER, endpoint=there)
            group = EpisodeGroup(generator)
            group.aborted = aborted
            turns = TurnGenerator(generator, sampling, seed=1, request=f"train/0/{attempt}", playing=group.member())
            return task, turns

        try:
            return await play(config, begin)
        finally:
            await endpoint.close()

    return asyncio.run(run())


def marked(episode: Episode) -> list[str]:
    """Each row as text, with what is trained on in ⟦⟧."""
    rows = episode_rows([episode], [1.0], group=0, pad_id=0)
    found: list[str] = []
    for row in range(len(rows.mask)):
        tokens, mask = rows.action[row, :, 0, 0].tolist(), rows.mask[row].tolist()
        text = "".join(f"⟦{TOKENIZER.decode([t])}⟧" if m else TOKENIZER.decode([t]) for t, m in zip(tokens, mask, strict=True) if t)
        found.append(text.replace("⟧⟦", ""))
    return found
