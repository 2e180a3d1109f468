"""A tag that the tokenizer splits ends a turn as one of a single token does: with its last token, no later and no earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import agent_toy
import numpy as np
import pytest
from agent_toy import DOUBLE, TagFormat

from rlinf.core.agents import Episode
from rlinf.core.agents.stopping import cut_at
from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Problem, WorkedTurn
from rlinf.core.language.tool_calls import ToolCall, ToolResult
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.agent.workflows import UseTools
from rlinf.runners.conversations.tool_use import ToolFormatSection, ToolSection
from rlinf.runners.sft.examples import example_with_tools

PIECES = ("$", "</", "t>", ">x")


class Pieces:
    """A tokenizer of letters and a few pieces, so that `</t>` is two tokens, or three of which the last says more."""

    pad_token_id, eos_token_id = 0, 256

    def __len__(self) -> int:
        return 256 + len(PIECES)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        found: list[int] = []
        while text:
            piece = next((number for number, each in enumerate(PIECES) if text.startswith(each)), None)
            found.append(ord(text[0]) if piece is None else 256 + piece)
            text = text[1 if piece is None else len(PIECES[piece]) :]
        return found

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = (token for token in token_ids if token != 256 or not skip_special_tokens)
        return "".join(chr(token) if token < 256 else PIECES[token - 256] for token in kept)

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any:
        raise NotImplementedError

    def save_pretrained(self, save_directory: str) -> None: ...


TOKENIZER = Pieces()


def completion(tokens: Sequence[int], finish: Any = "stop") -> Completion[Any]:
    logprob = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Completion(tokens=np.asarray(tokens), logprob=logprob, version=np.full(len(tokens), 3), finish=finish)


class Silent:
    """A generator that writes what it is told to, and shows nothing of it before its end."""

    def __init__(self, *says: Sequence[int]) -> None:
        self.says, self.asked = list(says), list[str]()

    async def generate(
        self, prompt: Sequence[int], sampling: Any, *, seed: int, request_id: str, partial: Any = None
    ) -> Completion[Any]:
        self.asked.append(TOKENIZER.decode(prompt))
        return completion(self.says.pop(0))


class Showing(Silent):
    """One that shows it token by token, and goes on until it is aborted."""

    def __init__(self, *says: Sequence[int]) -> None:
        super().__init__(*says)
        self.so_far: dict[str, list[int]] = {}
        self.aborted: list[str] = []

    async def generate(
        self, prompt: Sequence[int], sampling: Any, *, seed: int, request_id: str, partial: Any = None
    ) -> Completion[Any]:
        self.asked.append(TOKENIZER.decode(prompt))
        written = self.so_far[request_id] = []
        for token in self.says.pop(0):
            written.append(token)
            await asyncio.sleep(0)
        # A model that never ends by itself: without an abort, the test would not end either.
        while written[-1] != TOKENIZER.eos_token_id and request_id not in self.aborted:
            await asyncio.sleep(0.001)
        return completion(written, "abort" if request_id in self.aborted else "stop")

    def progress(self, request_id: str) -> Sequence[int]:
        return tuple(self.so_far.get(request_id, ()))

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        self.aborted += request_ids or ()


def played(generator: Any) -> Episode:
    config = AgentSection(tool_format=ToolFormatSection(type="toy", format=TagFormat()), workflow=UseTools())
    sampling = SamplingConfig(max_new_tokens=50, stop_token_ids=(256,))
    return agent_toy.played(generator, config, sampling, prompt="q:", tokenizer=TOKENIZER)


SPLIT = [ord("<"), ord("t"), ord(">"), ord("c"), 257, 258]
"""`<t>c</t>`, whose closing tag is two tokens."""
LONGER = [*SPLIT[:5], ord("t"), 259]
"""`<t>c</t>x`: the last token ends the tag, and says more."""


@pytest.mark.parametrize("kind", [Silent, Showing])
@pytest.mark.parametrize("call", [SPLIT, LONGER])
def test_a_turn_ends_with_the_last_token_of_its_tag(kind: Any, call: list[int]) -> None:
    generator = kind([*call, *TOKENIZER.encode("and on and on")], TOKENIZER.encode("done$"))
    episode = played(generator)
    first, second = episode.own_turns
    assert first.completion.tokens.tolist() == call, "not a token more, not one less, none written anew"
    assert first.completion.logprob.tolist() == [-n for n in range(1, len(call) + 1)]
    assert (first.completion.finish, first.results[0].text, second.text) == ("stop", "cc", "done")
    assert generator.asked == ["q:", f"q:{TOKENIZER.decode(call)}[cc]"]
    assert getattr(generator, "aborted", ["r/0"]) == ["r/0"], "what was noticed is not written on"


def test_what_has_no_tag_is_left_as_it_is() -> None:
    whole = completion(TOKENIZER.encode("a < / t > b$"))
    assert cut_at(whole, TOKENIZER, ["</t>"]) is whole
    assert cut_at(whole, TOKENIZER, []) is whole


def test_worked_examples_end_as_turns_do() -> None:
    """An end of the text behind the tag would teach what no episode has."""
    worked = WorkedTurn(calls=(ToolCall(name="t", arguments={"x": "c"}),), results=(ToolResult(text="cc", name="t"),))
    problem = Problem(prompt="q:", answer="", id=0, turns=(worked, WorkedTurn(text="done")))
    section = ToolSection(type="toy", tool=type("Toy", (), {"build": lambda self: DOUBLE, "check": lambda self, place: None})())
    use = AgentSection(tools=(section,), tool_format=ToolFormatSection(type="toy", format=TagFormat()), workflow=UseTools())
    example = example_with_tools(problem, TOKENIZER, use, [DOUBLE])
    assert TOKENIZER.decode(example.response) == "<t>c</t>[cc]done$"
