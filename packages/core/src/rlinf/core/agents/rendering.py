"""Messages to exact tokens: what a model wrote is never tokenised again, what it reads is rendered once, and checked."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.core.agents.formats import ToolFormat
from rlinf.core.agents.tools import Tool
from rlinf.core.errors import RLinfError
from rlinf.core.language.problems import Message, Tokenizer


class RenderingError(RLinfError):
    """The text of a conversation is not that of its tokens: the model would read something else than it was trained on."""


def appended_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text that follows others.

    Raises:
        RenderingError: the tokenizer can't write it.
    """
    added = tokenizer.encode(text, add_special_tokens=False)
    # A tokenizer may leave out or replace what it has no token for, without an error.
    rendered = tokenizer.decode(added)
    if rendered != text:
        found = f"the tokenizer turns {text[:80]!r} into {rendered[:80]!r}"
        raise RenderingError("conversation", found, "Use one that can write all that tools answer.")
    return added


def writable(tokenizer: Tokenizer, text: str) -> str:
    """A text as a tokenizer writes it: what it has no token for is left out or replaced, as the tokenizer does."""
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))


def continued_tokens(tokenizer: Tokenizer, tokens: Sequence[int], messages: Sequence[Message]) -> list[int]:
    """The tokens by which a conversation grows, so that a model reads all messages and writes next.

    Args:
        tokenizer: that of the model.
        tokens: what was read and written so far; it stays as it is.
        messages: the whole conversation, what was written among them.

    Raises:
        RenderingError: the chat template changes what was there already, or the tokenizer can't write what is new.
    """
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    built = tokenizer.decode(tokens)
    # The template begins a text with what the tokenizer put there; that is no part of the comparison.
    if not whole.startswith(built):
        at = next((n for n, (a, b) in enumerate(zip(whole, built, strict=False)) if a != b), min(len(whole), len(built)))
        found = f"the chat template writes {whole[at : at + 40]!r} where the model has read and written {built[at : at + 40]!r}"
        raise RenderingError("conversation", found, "Use a chat template that leaves earlier turns as they are.")
    return appended_tokens(tokenizer, whole[len(built) :])


def turn_ends(tokenizer: Tokenizer, form: ToolFormat, tools: Sequence[Tool]) -> tuple[int, ...]:
    """The tokens behind which a turn is over, as a format says; see `turn_stops` for texts that are more than one token."""
    found = [tokenizer.encode(text, add_special_tokens=False) for text in form.stops(tools)]
    return tuple(tokens[0] for tokens in found if len(tokens) == 1)


def turn_stops(tokenizer: Tokenizer, form: ToolFormat, tools: Sequence[Tool]) -> tuple[str, ...]:
    """The texts behind which a turn is over and which the tokenizer splits; `rlinf.core.agents.stopping` ends a turn there."""
    return tuple(text for text in form.stops(tools) if len(tokenizer.encode(text, add_special_tokens=False)) > 1)


def with_instructions(messages: Sequence[Message], told: str) -> tuple[Message, ...]:
    """Messages of which the first, of the system, also says `told`; "" leaves them as they are."""
    if not told:
        return tuple(messages)
    first, *rest = messages
    if first["role"] == "system":
        return ({**first, "content": f"{first['content']}\n\n{told}"}, *rest)
    return ({"role": "system", "content": told}, *messages)
