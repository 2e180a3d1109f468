"""Problems with answers that can be checked, and what turns them into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rlinf.core.language.tool_calls import ToolCall, ToolResult

Message = Mapping[str, str]
"""`role` ("system", "user", "assistant") and `content`."""
Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedTurn:
    """A turn of a worked response that uses tools."""

    text: str = ""
    """What is written before the calls."""
    calls: tuple[ToolCall, ...] = ()
    """The calls; () for the last turn."""
    results: tuple[ToolResult, ...] = ()
    """What each of them came to."""


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
    worked_replies: bool = False
    """Whether the assistant's messages of the prompt are worked responses, too, as in a recorded conversation that ends with
    `solution`; otherwise they are only read, such as examples of how to answer."""
    turns: tuple[WorkedTurn, ...] = ()
    """A worked response that uses tools, in place of `solution`; () if there is none."""
    images: tuple[Any, ...] = ()
    """Each `[H, W, 3]` uint8, in the order of the prompt's image marks."""
    place: str = field(default="", compare=False)
    """Where a person finds it, such as `file:line`; "" for what was made on the spot."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """All columns of its row, for rewards that look at more than `answer`; empty for what was made on the spot."""


class TaskConfig(Protocol):
    """A registered task: where problems come from."""

    def check(self, place: str) -> None:
        """Refuses early what `problems` would refuse late, such as a file that is not there."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in an order that never changes; no prompt is in two splits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    """A prompt of P tokens as a model reads it, with its pictures."""

    tokens: tuple[int, ...]
    """P token ids, in which each picture's mark is as many tokens as the model sees of it."""
    at: Any
    """`[n]` int, NumPy: which tokens show something, ascending; the last token never does."""
    shown: Mapping[str, Any]
    """Leaves `[n, *]`, NumPy: what these tokens show, by the names that the model's context has for it, 0 at all other tokens. With
    `n` = 0 the leaves are there all the same."""
    images: tuple[Any, ...] = ()
    """The pictures as they were, each `[H, W, 3]` uint8, for engines that look at them in a way of their own."""


class ImageProcessor(Protocol):
    """Turns pictures into what a model reads."""

    def read(self, prompt: Sequence[int], images: Sequence[Any]) -> ShownPrompt:
        """A prompt with its pictures; one without pictures, too.

        Args:
            prompt: token ids, with one image mark for each picture.
            images: each `[H, W, 3]` uint8, in the order of their marks.

        Raises:
            ConfigError: there are not as many marks as pictures, or the prompt ends with one.
        """
        ...

    def save_pretrained(self, folder: str) -> None:
        """Writes `preprocessor_config.json`, of which transformers makes the same one, into a folder that exists."""
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
