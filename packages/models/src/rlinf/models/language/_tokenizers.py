"""Tokenizers of transformers: made on the spot, or of a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from rlinf.core.errors import CheckpointError
from rlinf.models._tokenizers import byte_pairs, fast_tokenizer, read_tokenizer
from rlinf.models.language.vocabulary import SPECIAL, TokensConfig

CHAT: Final = (
    "{% for message in messages %}{{ message['role'] }}: "
    # Not a block of its own, behind which a line break would be left out.
    "{{ message['content'] + (eos_token if message['role'] == 'assistant' else '') }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""The chat template of a tokenizer that has none."""


def made(config: TokensConfig, corpus: Iterable[str]) -> Any:
    """A `transformers.PreTrainedTokenizerFast` that is the same for the same texts, on every machine.

    Args:
        config: says which.
        corpus: what it must be able to write, and what merges are learned from.

    Raises:
        ConfigError: a text has characters that are not in the alphabet.
    """
    if config.kind == "characters":
        config.expect_writable(corpus)
        own: Any = _characters(config.alphabet)
    else:
        own = byte_pairs(config.size, config.between_words(corpus))
    if config.words:
        _fill_up(own, config.vocabulary - len(config.words))
        own.add_tokens([AddedToken(word, normalized=False) for word in config.words])
    return _chatting(fast_tokenizer(own))


def of_folder(folder: str) -> Any:
    """The tokenizer that a folder holds; where it has no token for padding, the one that ends a text fills up.

    Raises:
        CheckpointError: it holds none, or one without an end that the model has.
    """
    remedy = "Point to a folder with the files of its tokenizer."
    if not Path(folder).expanduser().is_dir():
        raise CheckpointError("model_path", f"no folder '{folder}'", remedy)
    try:
        tokenizer = read_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError("model_path", f"no tokenizer in '{folder}' ({str(error).splitlines()[0]})", remedy) from error
    if tokenizer.eos_token_id is None:
        raise CheckpointError("model_path", f"the tokenizer of '{folder}' has no token that ends a text", remedy)
    size = _vocabulary(Path(folder).expanduser())
    if tokenizer.eos_token_id >= size:
        # A class of transformers brings its own where the files name none.
        problem = f"'{folder}' ends a text with {tokenizer.eos_token!r} ({tokenizer.eos_token_id}), and its model has {size} tokens"
        raise CheckpointError("model_path", problem, "Name one of them as eos_token in tokenizer_config.json.")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= size:
        tokenizer.pad_token = tokenizer.eos_token
    return _chatting(tokenizer)


def _vocabulary(folder: Path) -> float:
    """How many tokens the model of a folder has; any number where its configuration does not say."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return math.inf
    text: dict[str, Any] = config.get("text_config") or {}
    return config.get("vocab_size") or text.get("vocab_size") or math.inf


def _chatting(tokenizer: Any) -> Any:
    if tokenizer.chat_template is None:
        tokenizer.chat_template = CHAT
    return tokenizer


def _fill_up(tokenizer: Any, size: int) -> None:
    """Gives a tokenizer so many entries, so that words have the same ids whatever the texts are."""
    tokenizer.add_tokens([f"<unused {number}>" for number in range(tokenizer.get_vocab_size(), size)])


def _characters(alphabet: str) -> Tokenizer:
    entries = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer: Any = Tokenizer(WordLevel(entries, unk_token=SPECIAL[0]))
    # Not a dot, which leaves out line breaks.
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    # Otherwise the split would cut them into characters.
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
