"""A prompt and the response to it: as one text, as reward models read it, and as the messages that data sets hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Message, Tokenizer

_TEXTS_ONLY: Final = "Messages of pictures, calls or parts are not read: write them as texts, or remove the row."
_SHAREGPT: Final = "ShareGPT says 'from' and 'value': rename them, and their 'human' to 'user' and 'gpt' to 'assistant'."


def answered_tokens(tokenizer: Tokenizer, prompt: str | Sequence[Message], response: str) -> list[int]:
    """The tokens of a whole text, the same when a reward model is trained and when it scores.

    Messages go through the tokenizer's chat template, with the response as the assistant's; a prompt that is one text is followed
    by the response and the token that ends a text.

    Args:
        tokenizer: that of the model that reads the text.
        prompt: a text as it stands, or messages.
        response: what is judged.
    """
    if isinstance(prompt, str):
        tokens = tokenizer.encode(prompt + response)
        # Some tokenizers end a text by themselves.
        return tokens if tokens[-1:] == [tokenizer.eos_token_id] else [*tokens, tokenizer.eos_token_id]
    answer: Message = {"role": "assistant", "content": response}
    text = tokenizer.apply_chat_template([*prompt, answer], tokenize=False, add_generation_prompt=False)
    # A chat template writes special tokens itself.
    return tokenizer.encode(text, add_special_tokens=False)


def read_messages(found: object, place: str) -> tuple[Message, ...]:
    """Messages as a row holds them; what they have beside `role` and `content` is left out.

    Args:
        found: a list of mappings with the texts `role` and `content`.
        place: where it stands.

    Raises:
        ConfigError: it is no such list, or an empty one.
    """
    if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        raise ConfigError(place, f"expected a text or messages, found {found!r:.80}")
    messages = tuple(_message(item, place) for item in cast("Iterable[object]", found))
    if not messages:
        raise ConfigError(place, "expected at least one message, found none")
    return messages


def split_reply(messages: Sequence[Message]) -> tuple[tuple[Message, ...], str | None]:
    """What was asked, and the reply to it: the last message, if it is the assistant's; otherwise None."""
    if messages and messages[-1]["role"] == "assistant":
        return tuple(messages[:-1]), messages[-1]["content"]
    return tuple(messages), None


def _message(item: object, place: str) -> Message:
    remedy = _TEXTS_ONLY
    if isinstance(item, Mapping):
        message = cast("Mapping[str, object]", item)
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return {"role": role, "content": content}
        if "from" in message and "value" in message:
            remedy = _SHAREGPT
    raise ConfigError(place, f"expected a message with the texts 'role' and 'content', found {item!r:.80}", remedy)
