"""A prompt and the response to it as one text, as reward models read it."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.core.language.problems import Message, Tokenizer


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
