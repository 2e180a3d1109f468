"""A tokenizer of single characters with tags, and tools, so that this part is tested without the others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.core.agents import Episode, Tool, ToolBox, ToolCall, ToolError, ToolResult
from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Problem
from rlinf.runners.agent.episode_groups import EpisodeGroup
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.schema import AgentSection

TAGS = ("<t>", "</t>")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789+:[] \n'.,_-TEOKALIR"
WORDS = ["_", "<eos>", *TAGS, *LETTERS]


class TagTokenizer:
    pad_token_id, eos_token_id = 0, 1
    trims = False
    """Whether its chat template strips what earlier turns said."""

    def __len__(self) -> int:
        return len(WORDS)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [WORDS.index(part) if part in WORDS else 0 for part in re.findall(r"<eos>|</?t>|[\s\S]", text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(WORDS[token] for token in token_ids if token > 1 or not skip_special_tokens)

    def apply_chat_template(self, conversation: Sequence[Any], *, tokenize: bool, add_generation_prompt: bool) -> str:
        def said(message: Any) -> str:
            text = message["content"].strip() if self.trims else message["content"]
            return f"{message['role'][0]}:{text}" + ("<eos>" if message["role"] == "assistant" else "") + "\n"

        return "".join(map(said, conversation)) + ("a:" if add_generation_prompt else "")


@dataclass(frozen=True)
class TagFormat:
    role: Any = "user"

    def check(self, place: str) -> None: ...

    def stops(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return ("</t>",)

    def instructions(self, tools: Sequence[Tool]) -> str:
        return "tools"

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(name="t", arguments={"x": found}) for found in re.findall("<t>(.*?)</t>", text))

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "".join(f"<t>{call.arguments['x']}</t>" for call in calls)

    def write_results(self, results: Sequence[ToolResult]) -> str:
        return "".join(f"[{result.text}]" for result in results)


def double(x: str) -> str:
    """Writes it twice."""
    if x == "e":
        raise ToolError("no")
    return x + x


DOUBLE = Tool.of(double, name="t", inline=True)


def played(
    generator: Any,
    config: AgentSection,
    sampling: SamplingConfig,
    *,
    prompt: str = "ab:",
    tools: Sequence[Any] = (DOUBLE,),
    tokenizer: Any = None,
    group: EpisodeGroup | None = None,
) -> Episode:
    """One episode that goes on from a prompt; by default in a group of its own."""
    tokenizer, group = tokenizer or TagTokenizer(), group or EpisodeGroup(generator)

    def begin(attempt: int) -> tuple[Task, TurnGenerator]:
        problem, tokens = Problem(prompt=prompt, answer="", id=0), tuple(tokenizer.encode(prompt))
        task = Task(problem=problem, prompt=tokens, tools=ToolBox(tools), config=config, tokenizer=tokenizer)
        return task, TurnGenerator(generator, sampling, seed=attempt, request="r", playing=group.member())

    return asyncio.run(play(config, begin))


def written(text: str, finish: Any = "stop", *, version: int = 3) -> Completion[Any]:
    """A completion whose log-probabilities are −1, −2, …"""
    tokens = np.asarray(TagTokenizer().encode(text))
    logprob = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Completion(tokens=tokens, logprob=logprob, version=np.full(len(tokens), version), finish=finish)
