"""A tokenizer of single characters, a format of tool calls, and an endpoint over the toy model or over what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field

import numpy as np
import openai
from generation_toy import ToyWriter

from rlinf.core.agents import SessionConfig, ToolCall
from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.endpoint import OpenAIEndpointConfig
from rlinf.engines.generation import HFGeneratorConfig

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>/{}[]\"':,._+*=()|- \n?!"
WORDS = ["_", "<bos>", "<eos>", *LETTERS]


class CharTokenizer:
    pad_token_id, eos_token_id = 0, 2
    trims = False

    def __len__(self):
        return len(WORDS)

    def encode(self, text, *, add_special_tokens=True):
        return [WORDS.index(part) if part in WORDS else 0 for part in re.findall(r"<eos>|[\s\S]", text)]

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(WORDS[token] for token in token_ids if token > 2 or not skip_special_tokens)

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        def said(message):
            text = message["content"].strip() if self.trims else message["content"]
            return f"{message['role'][0]}:{text}" + ("<eos>" if message["role"] == "assistant" else "") + "\n"

        return "".join(map(said, conversation)) + ("a:" if add_generation_prompt else "")


class HermesLike:
    role = "user"

    def stops(self, tools):
        return ()

    def check(self, place): ...

    def instructions(self, tools):
        return f"tools {','.join(tool.name for tool in tools)}" if tools else ""

    def parse(self, text, tools):
        found = []
        for part in re.findall("<call>(.*?)</call>", text):
            try:
                read = json.loads(part)
                found.append(ToolCall(name=read["name"], arguments=read["arguments"]))
            except ValueError:
                found.append(ToolCall(name="", fault="unreadable"))
        return tuple(found)

    def write_calls(self, calls):
        return "".join(f"<call>{json.dumps({'name': c.name, 'arguments': dict(c.arguments)})}</call>" for c in calls)

    def write_results(self, results):
        return "".join(f"[{result.text}]" for result in results)


@dataclass
class Scripted:
    """A generator that says what it is told to, each token a version older or newer as the test wants."""

    says: list
    version: int = 3
    context_length: int | None = None
    asked: list = field(default_factory=list)
    delay_s: float = 0.0
    go_on: asyncio.Event | None = None
    """It answers when this is set."""
    under_way: int = 0
    most: int = 0
    cancelled: int = 0

    async def generate(self, prompt, sampling, *, seed, request_id, partial=None):
        self.asked.append((CharTokenizer().decode(prompt), sampling, seed))
        said = self.says.pop(0)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await (asyncio.sleep(self.delay_s) if self.go_on is None else self.go_on.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Completion) else written(said, version=self.version)

    def abort(self, request_ids=None): ...


@dataclass
class Unhurried(Scripted):
    """Shows three tokens, and ends when it is told to go on."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt, sampling, *, seed, request_id, partial=None):
        await self.go_on.wait()
        return written(self.says.pop(0))

    def progress(self, request_id):
        return CharTokenizer().encode(self.says[0])[:3] if self.says else ()


def written(text, finish="stop", *, version=3):
    """A completion whose log-probabilities are −1, −2, …"""
    tokens = np.asarray(CharTokenizer().encode(text))
    logprob = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Completion(tokens=tokens, logprob=logprob, version=np.full(len(tokens), version), finish=finish)


def toy_generator(context=512):
    return HFGeneratorConfig().build(ToyWriter(vocab_size=len(WORDS), max_position_embeddings=context))


@contextlib.asynccontextmanager
async def serving(generator, *, tokenizer=None, sampling=None, **config):
    session = SessionConfig(sampling=sampling or SamplingConfig(max_new_tokens=12))
    start = OpenAIEndpointConfig(**config).start(generator, tokenizer or CharTokenizer(), HermesLike(), session=session)
    endpoint = await start
    try:
        yield endpoint
    finally:
        await endpoint.close()


def marked(branch):
    """The text of a branch: what was written in parentheses, what is inherited in square brackets as well."""
    decode = CharTokenizer().decode
    parts = []
    for number, turn in enumerate(branch.turns):
        wrote = decode([int(token) for token in turn.completion.tokens])
        parts.append(decode(turn.prompt) + (f"({wrote})" if number >= branch.inherited else f"{{{wrote}}}"))
    return "".join(parts)


USER = {"role": "user", "content": "go"}


def talk(generator, dialogue, *, session=None, **config):
    """What a dialogue `(client, endpoint) -> …` returns."""

    async def run():
        async with serving(generator, **config) as endpoint:
            url = endpoint.base_url if session is None else endpoint.open(*session).base_url
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                return await dialogue(client, endpoint)

    return asyncio.run(run())


def ask(client, messages, *, model="policy", **more):
    return client.chat.completions.create(model=model, messages=messages, **more)


def only(endpoint):
    """The one session of clients without a name."""
    (session,) = endpoint._sessions._other.values()
    return session
