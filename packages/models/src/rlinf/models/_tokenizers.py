"""Tokenizers of folders, and one that is trained on the spot, for models that are built without a download."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from rlinf.models.language.vocabulary import SPECIAL

_hf: Any = import_module("transformers")

# The words of the models' own prompts and of common tasks, so that they take few tokens.
_WORDS = """In: What action should the robot take to move to the block that is red?
In: What action should the robot take to move to the block that is green?
In: What action should the robot take to move to the block that is blue?
In: What action should the robot take to push the puck to the goal?
In: What action should the robot take to pick up the red block and put it on the plate?
In: What action should the robot take to put the bowl in the drawer and close it?
In: What action should the robot take to open the door of the microwave?
In: What action should the robot take to push the cube to the target?
Out: Task: State: Action: Question: Answer: True False yes no 0 1 2 3 4 5 6 7 8 9 + - * = ( )
""".splitlines()


@cache
def tiny_tokenizer(vocab_size: int = 384) -> Any:
    """A byte-level BPE of at most `vocab_size` entries; any text can be encoded, frequent words of robots are one token.

    The same on every machine, and the same object on every call: it must not be changed.

    Args:
        vocab_size: at least 260: 4 special tokens and 256 bytes.

    Returns:
        A `transformers.PreTrainedTokenizerFast` that pads with `<pad>`.
    """
    return fast_tokenizer(byte_pairs(vocab_size, _WORDS))


def byte_pairs(size: int, corpus: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of at most so many entries, `SPECIAL` first, that learns from texts what to merge."""
    tokenizer: Any = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    # All 256 bytes are entries from the start, or a text with others than the corpus has could not be written.
    alphabet = ByteLevel.alphabet()
    trainer: Any = BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def fast_tokenizer(tokenizer: Tokenizer) -> Any:
    """As transformers has it, with the meanings of `SPECIAL`."""
    pad, bos, eos, _ = SPECIAL
    return _hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos)


def read_tokenizer(folder: Path | str) -> Any:
    """The tokenizer of a folder of Hugging Face; nothing is downloaded."""
    return _hf.AutoTokenizer.from_pretrained(str(Path(folder).expanduser()), local_files_only=True)
