"""The prompt of GR00T: placeholders for images, then the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import folder_of
from rlinf.models.gr00t.shapes import GR00TShape
from rlinf.models.observations.prompts import expect_room

EAGLE: Final = "eagle2_hg_model"
"""Where the vision-language model is in the folder of a checkpoint."""
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
            ConfigError: a task is too long.
        """
        known = self._encode(tasks)
        self._expect_room(known, "max_prompt_tokens")
        length = self.room + self.image_tokens
        padded = {task: [*ids, *[PADDING] * (length - len(ids))] for task, ids in known.items()}
        return torch.tensor([padded[task] for task in tasks], dtype=torch.int32)

    def expect_room(self, tasks: Sequence[str], place: str, *, beside: str = "") -> None:
        """Refuses tasks that are too long.

        Args:
            tasks: the instructions.
            place: that of the model.
            beside: what has tokens that are not counted, if anything.

        Raises:
            ConfigError: one is; the message has the key.
        """
        self._expect_room(self._encode(tasks), f"{place}.max_prompt_tokens", beside)

    def _expect_room(self, known: Mapping[str, Sequence[int]], key: str, beside: str = "") -> None:
        lengths = {task: len(ids) - self.image_tokens for task, ids in known.items()}
        expect_room(lengths, self.room, key, beside=beside)

    def _encode(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """The ids of each task's prompt."""
        distinct = list(dict.fromkeys(tasks))
        prompts = [self.shape.prompt.format(images=self.images, task=task) for task in distinct]
        return dict(zip(distinct, self.tokenizer(prompts, add_special_tokens=False).input_ids, strict=True))


def tokenizer_of(preset: str | None, model_path: str | None, tokenizer_path: str | None) -> Any:
    """The tokenizer of Eagle 2.5, from the folder that has it; of the tiny preset one that is made.

    Raises:
        ConfigError: there is none.
    """
    from rlinf.models._tokenizers import read_tokenizer, tiny_tokenizer

    if preset == "tiny":
        return tiny_tokenizer()
    folder, own = folder_of(model_path), folder_of(tokenizer_path)
    places = [own] if own is not None else [] if folder is None else [folder / EAGLE, folder]
    for place in places:
        if any((place / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            return read_tokenizer(place)
    found = f"expected a tokenizer in one of {[str(place) for place in places]}, found none"
    raise ConfigError("gr00t.tokenizer_path", found, "Set it to a folder with the tokenizer of Eagle 2.5.")
