"""Problems with answers that can be checked, and what turns them into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Message = Mapping[str, str]
"""`role` ("system", "user", "assistant") and `content`."""
Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem."""

    prompt: str | tuple[Message, ...]
    """Text as it stands, or messages for the tokenizer's chat template."""
    answer: str
    """What a reward compares with."""
    id: int
    """Unique in its split."""
    solution: str | None = None
    """A worked response, for supervised fine-tuning; None if there is none."""
    images: tuple[Any, ...] = ()
    """Each `[H, W, 3]` uint8, in the order of the prompt's image marks."""


class TaskConfig(Protocol):
    """A registered task: where problems come from."""

    def check(self, place: str) -> None:
        """Refuses early what `problems` would refuse late, such as a file that is not there."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in an order that never changes; no prompt is in two splits."""
        ...


class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    eos_token_id: int
    """Ends a response."""
    pad_token_id: int
    """Fills rows up."""

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text."""
        ...

    def apply_chat_template(self, conversation: Sequence[Message], *, tokenize: bool, add_generation_prompt: bool) -> Any:
        """The text or the token ids of messages."""
        ...

    def save_pretrained(self, save_directory: str) -> Any:
        """Writes it to a folder."""
        ...
