"""What a client asks for: OpenAI's body of a chat completion, read and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from rlinf.core.agents import Tool, ToolCall
from rlinf.core.language.generation import HOTTEST

MOST_CHOICES: Final = 128
"""The largest `n`, as that of OpenAI."""
_NEUTRAL: Final[Mapping[str, Any]] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "functions": [],
    "function_call": "none",
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    # Of vLLM and SGLang, beyond OpenAI's interface.
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1,
    "best_of": 1,
    "min_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
}
"""Parameters by which tokens would be drawn from something else than what the policy says, or that ask for what is not there; the
value that changes nothing is taken, as null is."""
_READ: Final = frozenset(
    [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "logprobs",
        "stream",
        "stream_options",
        "user",
    ]
)
_WITHOUT_EFFECT: Final = frozenset(
    ["metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"]
)
"""Parameters that say nothing of the answer, whatever their value."""


class APIError(Exception):
    """A request that is refused, in OpenAI's words.

    Attributes:
        status: of HTTP.
        content: the body of the answer.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message as a client sends it, without what makes no difference."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str = ""
    """Its text, without space around it where a model wrote it."""
    calls: tuple[tuple[str, str], ...] = ()
    """Of an assistant: names and arguments of calls, the latter as JSON with sorted keys."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Its calls, with their arguments read."""
        return tuple(ToolCall(name=name, arguments=json.loads(arguments)) for name, arguments in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request that can be answered."""

    messages: tuple[ChatMessage, ...]
    model: str | None = None
    """Which model is asked for; None for the one that is there."""
    tools: tuple[Tool, ...] = ()
    tools_key: str = ""
    """The tools as JSON."""
    calls_tools: bool = True
    """Whether what the model writes is read for calls."""
    choices: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    usage_in_stream: bool = False
    user: str | None = None


def read_request(body: bytes) -> ChatRequest:
    """A request from the body of a `POST /v1/chat/completions`.

    Raises:
        APIError: it can't be answered; the message names the parameter.
    """
    given = read_object(body)
    for name, value in given.items():
        if value is not None and name not in _READ | _WITHOUT_EFFECT and (name not in _NEUTRAL or value != _NEUTRAL[name]):
            code = "unsupported_parameter" if name in _NEUTRAL else "unknown_parameter"
            raise APIError(400, f"'{name}' is not supported: leave it out", param=name, code=code)
    model = given.get("model")
    if not isinstance(model, str | None):
        raise APIError(400, f"expected the name of a model, found {model!r:.80}", param="model")
    tools = _tools(given.get("tools") or [])
    stop = given.get("stop") or ()
    stream_options = _mapping(given.get("stream_options"))
    # OpenAI's newer name for the same; older clients send the other.
    named = "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
    return ChatRequest(
        messages=_messages(given.get("messages")),
        model=model,
        tools=tools,
        # Sorted, as it is compared: a request goes on from an earlier one only if it has the same tools.
        tools_key=json.dumps([tool.schema for tool in tools], sort_keys=True),
        calls_tools=bool(tools) and _tool_choice(given.get("tool_choice")),
        choices=int(_number(given, "n", 1, MOST_CHOICES, whole=True) or 1),
        max_tokens=_whole(_number(given, named, 1, 2**31, whole=True)),
        temperature=_number(given, "temperature", 0, HOTTEST),
        top_p=_number(given, "top_p", 1e-6, 1),
        seed=_whole(_number(given, "seed", -(2**63), 2**64, whole=True)),
        stop=_stops([stop] if isinstance(stop, str) else stop),
        logprobs=bool(given.get("logprobs")),
        stream=bool(given.get("stream")),
        usage_in_stream=bool(stream_options.get("include_usage")),
        user=None if given.get("user") is None else str(given["user"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a client thinks of an answer."""

    id: str | None
    """That of the answer; None for the last one."""
    reward: float
    user: str | None


def read_feedback(body: bytes) -> Feedback:
    """Feedback from the body of a `POST /v1/feedback`.

    Raises:
        APIError: it holds no finite reward.
    """
    given = read_object(body)
    accepted, value = given.get("accepted"), given.get("reward")
    value = float(accepted) if isinstance(accepted, bool) and value is None else value
    # To Python, true is a number.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise APIError(400, "expected a finite 'reward', or 'accepted' as true or false", param="reward")
    answer, user = (None if given.get(name) is None else str(given[name]) for name in ("id", "user"))
    return Feedback(id=answer, reward=float(value), user=user)


def read_object(body: bytes) -> Mapping[str, Any]:
    """The object that a body holds.

    Raises:
        APIError: it holds none.
    """
    try:
        given: Any = json.loads(body)
    except ValueError as error:
        raise APIError(400, f"the body is no JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise APIError(400, "expected an object as the body")
    return _mapping(given)


def call_key(call: ToolCall) -> tuple[str, str]:
    """A call so that equal ones are equal: its name, and its arguments as JSON with sorted keys."""
    return call.name, json.dumps(dict(call.arguments), sort_keys=True, ensure_ascii=False)


def _messages(given: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise APIError(400, "expected a list of at least one message", param="messages")
    listed = cast("Sequence[Any]", given)
    found = tuple(_message(number, each) for number, each in enumerate(listed))
    _check_results([_mapping(each) for each in listed], found)
    if found[-1].role == "assistant":
        raise APIError(400, "the last message is the assistant's own: nothing is to be answered", param="messages")
    return found


def _check_results(given: Sequence[Mapping[str, Any]], messages: Sequence[ChatMessage]) -> None:
    """Refuses the result of a call that the assistant's message before it does not have. Ids may be left out, on either side."""
    asked: set[Any] | None = None
    for number, (fields, message) in enumerate(zip(given, messages, strict=True)):
        if message.role != "tool":
            asked = {_mapping(call).get("id") for call in fields.get("tool_calls") or ()} if message.calls else None
            continue
        if asked is None:
            problem = "a tool's result without an assistant's message with tool_calls before it"
            raise APIError(400, problem, param=f"messages[{number}].role")
        name = fields.get("tool_call_id")
        if not isinstance(name, str | None) or (name is not None and None not in asked and name not in asked):
            problem = f"expected the id of a call of the message before it ({', '.join(sorted(map(str, asked)))}), found '{name}'"
            raise APIError(400, problem, param=f"messages[{number}].tool_call_id")


def _message(number: int, given: Any) -> ChatMessage:
    place = f"messages[{number}]"
    if not isinstance(given, Mapping):
        raise APIError(400, f"expected an object, found {given!r:.80}", param=place)
    fields = cast("Mapping[str, Any]", given)
    # A newer and an older name of OpenAI for the same.
    role = {"developer": "system", "function": "tool"}.get(str(fields.get("role")), str(fields.get("role")))
    if role not in ("system", "user", "assistant", "tool"):
        raise APIError(400, f"expected system, developer, user, assistant or tool, found '{role}'", param=f"{place}.role")
    text = _text(fields.get("content"), f"{place}.content")
    if role != "assistant":
        return ChatMessage(role=role, content=text)
    asked: Any = fields.get("tool_calls") or ()
    if not isinstance(asked, Sequence):
        raise APIError(400, f"expected a list of calls, found {asked!r:.80}", param=f"{place}.tool_calls")
    calls = tuple(_call(each, f"{place}.tool_calls") for each in cast("Sequence[Any]", asked))
    # As in `Reply.message`, to which it must be equal for the conversation to go on from that answer.
    return ChatMessage(role=role, content=text.strip(), calls=calls)


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise APIError(400, f"expected text, found {content!r:.80}", param=place)
    parts: list[str] = []
    for part in cast("Sequence[Any]", content):
        fields = _mapping(part)
        # A part of an assistant's message may be a refusal, whose text has another name.
        text = fields.get("text", fields.get("refusal"))
        if not isinstance(text, str):
            raise APIError(400, f"expected parts of text, found one of type '{fields.get('type')}'", param=place)
        parts.append(text)
    return "".join(parts)


def _call(given: Any, place: str) -> tuple[str, str]:
    try:
        function = given["function"]
        if not isinstance(given.get("id"), str | None):
            raise ValueError
        arguments: Any = json.loads(function.get("arguments") or "{}")
        if not isinstance(arguments, Mapping):
            raise ValueError
        return call_key(ToolCall(name=str(function["name"]), arguments=cast("Mapping[str, Any]", arguments)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise APIError(
            400, f"expected an id as text, a function's name and arguments as JSON, found {given!r:.120}", param=place
        ) from None


def _tools(given: Any) -> tuple[Tool, ...]:
    try:
        found = [each["function"] for each in given]
        return tuple(
            Tool(
                name=str(each["name"]),
                description=str(each.get("description") or ""),
                parameters=dict(each.get("parameters") or {"type": "object", "properties": {}}),
                function=_not_here,
            )
            for each in found
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise APIError(400, "expected tools of type 'function', each with a name", param="tools") from None


def _not_here() -> None:
    """Tools of a client run at the client."""


def _tool_choice(given: Any) -> bool:
    """Whether calls are read. None is enforced: that would draw tokens from another distribution than the policy's."""
    if given in (None, "auto", "required"):
        return True
    if given == "none":
        return False
    if _mapping(given).get("type") == "function":
        return True
    raise APIError(400, f"expected none, auto, required or a function, found {given!r:.80}", param="tool_choice")


def _stops(given: Any) -> tuple[str, ...]:
    texts = cast("Sequence[Any]", given) if isinstance(given, Sequence) else (given,)
    if len(texts) > 16 or not all(isinstance(text, str) and text for text in texts):
        raise APIError(400, "expected at most 16 texts", param="stop")
    return tuple(map(str, texts))


def _mapping(given: Any) -> Mapping[str, Any]:
    """An object; {} for anything else."""
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}


def _number(given: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise APIError(400, f"expected {kind} from {low:g} to {high:g}, found {value!r:.80}", param=name)
    return value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
