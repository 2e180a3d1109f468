"""What a client gets: OpenAI's chat completions, whole or in pieces, and how texts of tokens are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf.core.agents import Tool, ToolCall, ToolFormat
from rlinf.core.data import Completion
from rlinf.core.language.problems import Tokenizer
from rlinf.engines.endpoint.chat_request import ChatMessage, call_key

_UNFINISHED = "\ufffd"
"""What a decoder writes for bytes that are the beginning of a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One choice of an answer."""

    completion: Completion[Any]
    """What the model wrote, up to the end of a text that stops it; NumPy."""
    text: str
    """All of it, without special tokens: what the chat template gets."""
    content: str
    """What the client sees, without calls and without the text that stopped it."""
    calls: tuple[ToolCall, ...]
    """All calls in it, those that can't be read among them."""
    finish: str
    """OpenAI's word."""

    @property
    def readable_calls(self) -> tuple[ToolCall, ...]:
        """Those that the client gets."""
        return tuple(call for call in self.calls if not call.fault)

    @property
    def message(self) -> ChatMessage:
        """As the client sends it back."""
        return ChatMessage(role="assistant", content=self.content.strip(), calls=tuple(map(call_key, self.readable_calls)))


def read_reply(
    completion: Completion[Any], tokenizer: Tokenizer, form: ToolFormat, tools: Sequence[Tool], stop: Sequence[str]
) -> Reply:
    """What a completion says.

    Args:
        completion: NumPy.
        tokenizer: that of the model.
        form: how the model writes calls.
        tools: what may be called; () reads no calls.
        stop: texts that end it, as `cut_at` has cut it.
    """
    text = tokenizer.decode([int(token) for token in completion.tokens], skip_special_tokens=True)
    shown = _before(text, stop)
    # A turn that was cut off calls nothing.
    calls = form.parse(text, tools) if tools and completion.finish == "stop" else ()
    readable = [call for call in calls if not call.fault]
    content = _before_calls(shown, calls, form, tools) if readable else shown
    finish = "tool_calls" if readable else completion.finish
    return Reply(completion=completion, text=text, content=content, calls=calls, finish=finish)


def shown_so_far(text: str, stop: Sequence[str]) -> str:
    """What of an unfinished text can be shown: nothing that may be half a character, or the beginning of a text that stops it."""
    text = _before(text, stop).rstrip(_UNFINISHED)
    for length in range(max(map(len, stop), default=0) - 1, 0, -1):
        if any(text.endswith(each[:length]) for each in stop):
            return text[:-length]
    return text


def completion_body(
    answer: Mapping[str, Any], replies: Sequence[Reply], prompt: int, tokenizer: Tokenizer, *, logprobs: bool
) -> Any:
    """The body of an answer that is not streamed.

    Args:
        answer: its id, time and model.
        replies: its choices.
        prompt: tokens of the prompt.
        tokenizer: that of the model.
        logprobs: whether log-probabilities were asked for.
    """
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": reply.content or None, "refusal": None, **tool_calls(answer, index, reply)},
            "logprobs": _logprobs(reply.completion, tokenizer) if logprobs else None,
            "finish_reason": reply.finish,
        }
        for index, reply in enumerate(replies)
    ]
    return {**answer, "object": "chat.completion", "choices": choices, "usage": usage(prompt, replies)}


def tool_calls(answer: Mapping[str, Any], index: int, reply: Reply, *, numbered: bool = False) -> dict[str, Any]:
    """The calls of a message; {} without any."""
    found = [
        {
            **({"index": number} if numbered else {}),
            "id": f"call_{answer['id'].removeprefix('chatcmpl-')}_{index}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for number, call in enumerate(reply.readable_calls)
    ]
    return {"tool_calls": found} if found else {}


def usage(prompt: int, replies: Sequence[Reply]) -> dict[str, int]:
    """How many tokens were read and written."""
    written = sum(len(reply.completion) for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def last_pieces(
    answer: Mapping[str, Any], index: int, reply: Reply, sent: str, tokenizer: Tokenizer, *, logprobs: bool
) -> Iterator[Any]:
    """The pieces of a stream that are left when a choice is complete.

    Args:
        answer: its id, time and model.
        index: of the choice.
        reply: the choice.
        sent: the content that the client has.
        tokenizer: that of the model.
        logprobs: whether log-probabilities were asked for; all come with the last text.
    """
    delta = {
        **({"content": reply.content[len(sent) :]} if reply.content[len(sent) :] else {}),
        **tool_calls(answer, index, reply, numbered=True),
    }
    if delta or logprobs:
        yield piece(answer, index, delta, logprobs=_logprobs(reply.completion, tokenizer) if logprobs else None)
    yield piece(answer, index, {}, finish=reply.finish)


def piece(
    answer: Mapping[str, Any], index: int, delta: Mapping[str, Any], *, finish: str | None = None, logprobs: Any = None
) -> Any:
    """One event of a stream."""
    choice = {"index": index, "delta": dict(delta), "logprobs": logprobs, "finish_reason": finish}
    return {**answer, "object": "chat.completion.chunk", "choices": [choice]}


def _logprobs(completion: Completion[Any], tokenizer: Tokenizer) -> Any:
    found: list[dict[str, Any]] = []
    for token, logprob in zip(completion.tokens, completion.logprob, strict=True):
        text = tokenizer.decode([int(token)])
        found.append({"token": text, "logprob": float(logprob), "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": found, "refusal": None}


def _before(text: str, stop: Sequence[str]) -> str:
    places = [place for place in (text.find(each) for each in stop) if place >= 0]
    return text[: min(places)] if places else text


def _before_calls(text: str, calls: Sequence[ToolCall], form: ToolFormat, tools: Sequence[Tool]) -> str:
    """What stands before the first call: the longest beginning without which the rest still makes the same calls."""
    bare = [replace(call, fault="") for call in calls]
    for place in reversed(range(len(text))):
        # Every format begins a call with a tag or with an object of JSON.
        if text[place] in "<{" and [replace(call, fault="") for call in form.parse(text[place:], tools)] == bare:
            return text[:place].rstrip()
    return ""
