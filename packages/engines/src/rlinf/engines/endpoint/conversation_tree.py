"""What a client and a model said to each other, as exact tokens: a tree of turns.

A request whose messages go on from an earlier answer goes on from that answer's tokens, which are never tokenised again. Several
requests that go on from one answer are branches of it. A request that goes on from none, or whose client has rewritten what was
said, begins at the root.

    system, user ──► turn 1 ──► turn 2           request 3 repeats the messages of turn 1 and goes on in another way:
                        └─────► turn 3           branches (1, 2) and (1, 3), of which the second inherits turn 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf.core.agents import Branch, ToolCall, ToolFormat, ToolResult, Turn
from rlinf.core.agents.rendering import RenderingError, appended_tokens, continued_tokens, with_instructions
from rlinf.core.data import Completion
from rlinf.core.language.problems import Message, Tokenizer
from rlinf.engines.endpoint.chat_request import ChatMessage, ChatRequest

Key = tuple[str, tuple[ChatMessage, ...]]


@dataclass(slots=True, eq=False)
class TurnState:
    """The state of a conversation behind a turn."""

    parent: TurnState | None
    turn: Turn
    tokens: tuple[int, ...]
    """All that was read and written."""
    messages: tuple[Message, ...]
    """The same as the chat template reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads for a request."""

    parent: TurnState | None
    """Behind which turn; None begins anew."""
    tokens: tuple[int, ...]
    """What was read and written before, and what is new."""
    messages: tuple[Message, ...]
    """The same as the chat template reads it."""
    key: Key
    """The request's messages."""
    results: tuple[ToolResult, ...] = ()
    """What became of the parent's calls."""


@dataclass(slots=True, eq=False)
class ConversationTree:
    """The turns of one session."""

    tokenizer: Tokenizer
    form: ToolFormat
    plain: bool
    """Whether messages follow each other as they are, without a chat template."""
    turns: list[TurnState] = field(default_factory=list[TurnState])
    """In the order in which they were written."""
    rendered_anew: int = 0
    """How often the chat template changed what was said before, so that a branch of its own begins there."""
    _by_key: dict[Key, TurnState] = field(default_factory=dict[Key, TurnState])

    def prompt(self, request: ChatRequest) -> Prompt:
        """What the model reads for a request: the longest answer that it goes on from, and what is new."""
        for count in range(len(request.messages) - 1, 0, -1):
            parent = self._by_key.get((request.tools_key, request.messages[:count]))
            if parent is None:
                continue
            try:
                return self._continued(parent, request, request.messages[count:])
            except RenderingError:
                self.rendered_anew += 1
                break
        return self._begun(request)

    def add(
        self, prompt: Prompt, completion: Completion[Any], *, text: str, calls: Sequence[ToolCall], reply: ChatMessage
    ) -> TurnState:
        """Takes over what was written behind a prompt.

        Args:
            prompt: what the model read.
            completion: what it wrote; NumPy.
            text: the same as text, with what the client does not see.
            calls: the calls in it.
            reply: the message that the client got.
        """
        parent = prompt.parent
        read = prompt.tokens[len(parent.tokens) :] if parent is not None else prompt.tokens
        # A turn keeps the results that it got first; branches of it may have been told others.
        if parent is not None and prompt.results and not parent.turn.results:
            parent.turn = replace(parent.turn, results=prompt.results)
        turn = Turn(prompt=read, completion=completion, text=text, calls=tuple(calls))
        tokens = (*prompt.tokens, *(int(token) for token in completion.tokens))
        said = TurnState(parent, turn, tokens, (*prompt.messages, {"role": "assistant", "content": text}))
        self.turns.append(said)
        # Of several equal answers to one prompt the first is gone on from.
        self._by_key.setdefault((prompt.key[0], (*prompt.key[1], reply)), said)
        return said

    def branches(self) -> tuple[Branch, ...]:
        """Every way from the root to a last turn; turns that two of them share belong to the first."""
        inner = {said.parent for said in self.turns}
        seen: set[TurnState] = set()
        found: list[Branch] = []
        for leaf in (said for said in self.turns if said not in inner):
            path = [*_way(leaf)][::-1]
            inherited = sum(said in seen for said in path)
            seen.update(path)
            found.append(Branch(turns=tuple(said.turn for said in path), inherited=inherited))
        return tuple(found)

    @staticmethod
    def branch(said: TurnState) -> Branch:
        """The turns up to one, of which only that is its own."""
        path = [*_way(said)][::-1]
        return Branch(turns=tuple(each.turn for each in path), inherited=len(path) - 1)

    def _begun(self, request: ChatRequest) -> Prompt:
        messages = self._read(request.messages)
        if self.plain:
            # With what the tokenizer puts in front of a text, for no template does it here.
            tokens = self.tokenizer.encode("".join(message["content"] for message in messages))
        else:
            messages = with_instructions(messages, self.form.instructions(request.tools))
            whole = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            # A chat template writes special tokens itself.
            tokens = self.tokenizer.encode(whole, add_special_tokens=False)
        return Prompt(parent=None, tokens=tuple(tokens), messages=messages, key=(request.tools_key, request.messages))

    def _continued(self, parent: TurnState, request: ChatRequest, new: Sequence[ChatMessage]) -> Prompt:
        messages = (*parent.messages, *self._read(new))
        if self.plain:
            text = "".join(message["content"] for message in messages[len(parent.messages) :])
            added = appended_tokens(self.tokenizer, text)
        else:
            added = continued_tokens(self.tokenizer, parent.tokens, messages)
        return Prompt(
            parent=parent,
            tokens=(*parent.tokens, *added),
            messages=messages,
            key=(request.tools_key, request.messages),
            results=tuple(ToolResult(text=message.content) for message in new if message.role == "tool"),
        )

    def _read(self, messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
        """Messages for the chat template, in which calls and results stand as the model writes and reads them."""
        found: list[Message] = []
        results: list[ToolResult] = []
        for number, message in enumerate(messages):
            if message.role == "tool":
                results.append(ToolResult(text=message.content))
                if number + 1 < len(messages) and messages[number + 1].role == "tool":
                    continue
                found.append({"role": self.form.role, "content": self.form.write_results(results)})
                results = []
            else:
                called = self.form.write_calls(message.tool_calls) if message.calls else ""
                content = "\n".join(filter(None, (message.content, called))) if called else message.content
                found.append({"role": message.role, "content": content})
        return tuple(found)


def _way(said: TurnState | None) -> Iterator[TurnState]:
    """A turn and those before it."""
    while said is not None:
        yield said
        said = said.parent
