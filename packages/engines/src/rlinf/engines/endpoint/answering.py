"""Writes answers: prompt, completions, and what is recorded of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf.core.agents import ToolFormat
from rlinf.core.agents.rendering import turn_ends, turn_stops
from rlinf.core.agents.stopping import LOOK_S, cut_at
from rlinf.core.capabilities import HasContext, HasProgress
from rlinf.core.data import Completion
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, error_text
from rlinf.core.language.generation import Generator, SamplingConfig
from rlinf.core.language.problems import Tokenizer
from rlinf.engines.endpoint.chat_request import APIError, ChatRequest
from rlinf.engines.endpoint.conversation_tree import Prompt
from rlinf.engines.endpoint.replies import (
    Reply,
    completion_body,
    last_pieces,
    piece,
    read_reply,
    shown_so_far,
    usage,
)
from rlinf.engines.endpoint.session import Session


@dataclass(slots=True, eq=False, kw_only=True)
class _Choice:
    """A completion under way."""

    request_id: str
    task: asyncio.Future[Completion[Any]]
    sent: str = ""
    """The content that the client has."""
    stopped: bool = False
    """Whether it was aborted because it has a text that stops it."""


class Answering:
    """Writes answers with a generator.

    Args:
        generator: writes.
        tokenizer: that of the model.
        form: how the model writes calls.
        model: its name.
    """

    def __init__(self, generator: Generator, tokenizer: Tokenizer, form: ToolFormat, model: str) -> None:
        self._generator, self._tokenizer, self._form, self._model = generator, tokenizer, form, model

    async def answer(self, chat: ChatRequest, session: Session, name: str) -> Any:
        """The body of an answer.

        Raises:
            APIError: it can't be written.
        """
        prompt, choices = self._begin(chat, session, name)
        try:
            await self._written(chat, choices)
            replies = self._recorded(chat, session, name, prompt, choices)
        finally:
            _end(choices)
        return completion_body(self._head(name), replies, len(prompt.tokens), self._tokenizer, logprobs=chat.logprobs)

    async def stream(self, chat: ChatRequest, session: Session, name: str) -> AsyncGenerator[Any]:
        """The pieces of an answer. With tools, text comes at the end: it might be a call.

        Raises:
            APIError: it can't be written.
        """
        prompt, choices = self._begin(chat, session, name)
        head = self._head(name)
        try:
            for index in range(len(choices)):
                yield piece(head, index, {"role": "assistant", "content": ""})
            # Without those that have ended, for which there is nothing to wait.
            while waiting := [choice.task for choice in choices if not choice.task.done()]:
                await asyncio.wait(waiting, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for index, choice in enumerate(choices):
                    new = self._news(chat, choice)
                    # Log-probabilities come with the last text, which then has to be all of it.
                    if new and not (chat.tools or chat.logprobs):
                        choice.sent += new
                        yield piece(head, index, {"content": new})
                # Without progress there is nothing to look at before the end.
                if all(choice.task.done() or not isinstance(self._generator, HasProgress) for choice in choices):
                    await asyncio.wait([choice.task for choice in choices])
            replies = self._recorded(chat, session, name, prompt, choices)
            for index, (choice, reply) in enumerate(zip(choices, replies, strict=True)):
                for event in last_pieces(head, index, reply, choice.sent, self._tokenizer, logprobs=chat.logprobs):
                    yield event
            if chat.usage_in_stream:
                yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(len(prompt.tokens), replies)}
        finally:
            _end(choices)

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": name, "created": int(time.time()), "model": self._model, "system_fingerprint": f"v{self._generator.version}"}

    def _begin(self, chat: ChatRequest, session: Session, name: str) -> tuple[Prompt, list[_Choice]]:
        try:
            prompt = session.prompt(chat)
        except Exception as error:  # noqa: BLE001 - see below
            # Templates refuse in ways of their own, such as two messages of a user behind each other.
            found = f"the chat template refuses these messages: {error_text(error)}"
            raise APIError(400, found, param="messages") from None
        sampling = self._sampling(chat, session, len(prompt.tokens))
        choices: list[_Choice] = []
        for index, seed in enumerate(session.seeds(chat)):
            request = f"{name}/{index}"
            task = asyncio.ensure_future(self._write(session, prompt.tokens, sampling, seed, request))
            choices.append(_Choice(request_id=request, task=task))
        return prompt, choices

    def _sampling(self, chat: ChatRequest, session: Session, length: int) -> SamplingConfig:
        """That of the session and the request, with all that ends a turn, within what is left of the context."""
        sampling = session.sampling(chat)
        ends = list(sampling.stop_token_ids or (self._tokenizer.eos_token_id,))
        ends += turn_ends(self._tokenizer, self._form, chat.tools if chat.calls_tools else ())
        texts = [self._tokenizer.encode(text, add_special_tokens=False) for text in chat.stop]
        # Behind a single token the engine ends by itself; longer texts are looked for as they are written.
        ends += [tokens[0] for tokens in texts if len(tokens) == 1]
        room = self._generator.context_length if isinstance(self._generator, HasContext) else None
        most = sampling.max_new_tokens
        # The bound is that of the generator, which does not write for a session with a writer of its own.
        if room is not None and session.write is None:
            if length >= room:
                found = f"the messages are {length} tokens, and the model reads and writes {room}"
                raise APIError(400, found, param="messages", code="context_length_exceeded")
            most = min(most, room - length)
        return replace(sampling, max_new_tokens=most, stop_token_ids=tuple(dict.fromkeys(ends)))

    async def _write(
        self, session: Session, tokens: Sequence[int], sampling: SamplingConfig, seed: int, request_id: str
    ) -> Completion[Any]:
        try:
            if session.write is not None:
                written = await session.write(tokens, sampling, request_id=request_id)
            else:
                written = await self._generator.generate(tokens, sampling, seed=seed, request_id=request_id)
        except ConfigError as error:
            raise APIError(400, str(error)) from None
        except Exception as error:
            session.failure = session.failure or error
            raise APIError(500, f"the engine failed: {error_text(error)}", code="engine_failed") from error
        arrays = (as_numpy(array) for array in (written.tokens, written.logprob, written.version))
        found, logprob, version = arrays
        return Completion(tokens=found, logprob=logprob, version=version, finish=written.finish)

    async def _written(self, chat: ChatRequest, choices: Sequence[_Choice]) -> None:
        """Waits until all is written, and looks for texts that stop it if the generator shows what it has."""
        look = LOOK_S if self._stops(chat) and isinstance(self._generator, HasProgress) else None
        waiting: set[asyncio.Future[Completion[Any]]] = {choice.task for choice in choices}
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=look, return_when=asyncio.FIRST_EXCEPTION)
            # The first failure, as the other choices have no result yet.
            for task in done:
                if error := task.exception():
                    raise error
            for choice in choices:
                self._news(chat, choice)

    def _news(self, chat: ChatRequest, choice: _Choice) -> str:
        """What can be shown beyond what was sent; ends a completion that has a text that stops it."""
        if choice.task.done() or choice.stopped or not isinstance(self._generator, HasProgress):
            return ""
        so_far = self._generator.progress(choice.request_id)
        if not so_far:
            return ""
        whole = self._tokenizer.decode(so_far, skip_special_tokens=True)
        if any(stop in whole for stop in self._stops(chat)):
            choice.stopped = True
            self._generator.abort([choice.request_id])
        return shown_so_far(whole, chat.stop)[len(choice.sent) :]

    def _stops(self, chat: ChatRequest) -> tuple[str, ...]:
        """Texts that end an answer: those of the request, and ends of calls that the tokenizer splits."""
        return (*chat.stop, *turn_stops(self._tokenizer, self._form, chat.tools if chat.calls_tools else ()))

    def _recorded(self, chat: ChatRequest, session: Session, name: str, prompt: Prompt, choices: Sequence[_Choice]) -> list[Reply]:
        """The choices, which the session has from now on: all of them, or none."""
        replies: list[Reply] = []
        for choice in choices:
            completion = cut_at(choice.task.result(), self._tokenizer, self._stops(chat))
            # An abort because of a text that stops it has become a stop in `cut_at`; any other leaves half an answer.
            if completion.finish in ("abort", "error"):
                raise APIError(503, "the request was ended before it was complete", code="aborted")
            tools = chat.tools if chat.calls_tools else ()
            replies.append(read_reply(completion, self._tokenizer, self._form, tools, chat.stop))
        for reply in replies:
            session.add(name, prompt, reply)
        return replies


def _end(choices: Sequence[_Choice]) -> None:
    for choice in choices:
        choice.task.cancel()
