"""The prompt of GR00T: placeholders for images, then the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.gr00t.shapes import GR00TShape

PADDING = -1
"""No token: where a prompt is over."""


class Prompter:
    """Writes and encodes prompts, all of one length.

    Args:
        tokenizer: of Hugging Face.
        shape: has the templates.
        views: images in each prompt.
        room: tokens beside those of images.
    """

    def __init__(self, tokenizer: Any, shape: GR00TShape, *, views: int, room: int) -> None:
        self.tokenizer, self.shape, self.room = tokenizer, shape, room
        self.image_tokens = views * shape.tokens_per_image
        self.placeholder: int = tokenizer.convert_tokens_to_ids(shape.placeholder)
        placeholders = shape.placeholder * shape.tokens_per_image
        self.images = "".join(shape.image.format(number=i + 1, placeholders=placeholders) for i in range(views))
        # A tokenizer that doesn't know the placeholder cuts it into pieces, and no image would find its place.
        if len(tokenizer(shape.placeholder, add_special_tokens=False).input_ids) != 1:
            problem = f"the tokenizer does not know '{shape.placeholder}'"
            raise ConfigError("gr00t.tokenizer", problem, "Use the tokenizer of Eagle 2.5, which the public code has.")

    def __call__(self, tasks: Sequence[str]) -> Tensor:
        """`[B, L]` int32, L the room and the tokens of images; `PADDING` at the end.

        Raises:
            ShapeError: a task is too long.
        """
        known = {task: self._encode(task) for task in set(tasks)}
        return torch.stack([known[task] for task in tasks])

    def _encode(self, task: str) -> Tensor:
        text = self.shape.prompt.format(images=self.images, task=task)
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        spare = self.room + self.image_tokens - len(ids)
        if spare < 0:
            problem = f"expected at most {self.room} tokens, found {self.room - spare} in '{task}'"
            raise ShapeError("gr00t(task_descriptions)", problem, "Raise max_prompt_tokens.")
        return torch.tensor([*ids, *[PADDING] * spare], dtype=torch.int32)
