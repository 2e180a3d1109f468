"""Pictures as a Qwen-VL model reads them, made by the image processor of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.language.problems import ShownPrompt
from rlinf.models.language.images import IMAGE_GRID, IMAGE_PATCHES

_hf: Any = import_module("transformers")
_MOST_PIXELS: Final = 28 * 28 * 1280
"""Of a picture for a preset, as for Qwen2-VL."""


class QwenImageProcessor:
    """Cuts pictures into patches, and widens each image mark to the tokens that the model sees of its picture.

    Wang et al., "Qwen2-VL" (2024), arXiv:2409.12191: pictures keep their shape, and m × m patches are merged into one token.

    Args:
        processor: `Qwen2VLImageProcessorPil` of transformers, or one that is called like it.
        image_token_id: the image mark.
    """

    def __init__(self, processor: Any, image_token_id: int) -> None:
        self._processor, self._mark = processor, image_token_id
        self._merge: int = processor.merge_size
        self._width: int = self._merge**2 * 3 * processor.temporal_patch_size * processor.patch_size**2

    def read(self, prompt: Sequence[int], images: Sequence[Any]) -> ShownPrompt:
        """A prompt with its pictures; see `rlinf.core.language.problems.ImageProcessor`. Patches are float32."""
        tokens = np.asarray(prompt, np.int64)
        marks = np.flatnonzero(tokens == self._mark)
        if len(marks) != len(images):
            found = f"expected an image mark (token {self._mark}) for each picture, found {len(marks)} for {len(images)}"
            raise ConfigError("prompt", found, "Set data.image_mark to what the model's tokenizer has for pictures.")
        if len(marks) and marks[-1] == len(tokens) - 1:
            raise ConfigError("prompt", "expected something behind the picture, found its end", "Put the question there.")
        patches, grid = self._patches(images)
        counts = grid.prod(1) // self._merge**2
        repeats = np.ones(len(tokens), np.int64)
        repeats[marks] = counts
        widened = np.repeat(tokens, repeats)
        at = np.flatnonzero(widened == self._mark)
        begins = np.zeros((len(at), 3), np.int64)
        # The sum of the counts before a picture is the index of its first token.
        begins[np.cumsum(counts) - counts] = grid
        shown = {IMAGE_PATCHES: patches.reshape(len(at), self._width), IMAGE_GRID: begins}
        return ShownPrompt(tokens=tuple(widened.tolist()), at=at, shown=shown, images=tuple(images))

    def save_pretrained(self, folder: str) -> None:
        self._processor.save_pretrained(folder)

    def _patches(self, images: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`[N, P]` and `[I, 3]`."""
        if not images:
            return np.zeros((0, self._width), np.float32), np.zeros((0, 3), np.int64)
        # Not left to inference: transformers takes a picture of 3 rows for one with its channels first.
        found = self._processor(images=list(images), input_data_format="channels_last", return_tensors="np")
        return np.asarray(found["pixel_values"], np.float32), np.asarray(found["image_grid_thw"], np.int64)


def qwen_image_processor(own: Any, folder: Path | None) -> QwenImageProcessor:
    """The image processor of a model of transformers.

    Args:
        own: the model's configuration.
        folder: where its image processor is; None for one with the sizes of `own`, which enlarges no picture that has one token.

    Raises:
        ConfigError: the model reads pictures in another way.
        CheckpointError: the folder has no image processor.
    """
    vision: dict[str, Any] = own.vision_config.to_dict()
    if not {"patch_size", "temporal_patch_size", "spatial_merge_size"} <= set(vision):
        raise ConfigError("architecture", f"'{own.model_type}' is shown no pictures here", "Use qwen2_5_vl or qwen3_vl.")
    if folder is not None:
        return QwenImageProcessor(_of_folder(folder), own.image_token_id)
    patch, merge = vision["patch_size"], vision["spatial_merge_size"]
    processor = _hf.Qwen2VLImageProcessorPil(
        patch_size=patch,
        temporal_patch_size=vision["temporal_patch_size"],
        merge_size=merge,
        size={"shortest_edge": (patch * merge) ** 2, "longest_edge": _MOST_PIXELS},
    )
    return QwenImageProcessor(processor, own.image_token_id)


def _of_folder(folder: Path) -> Any:
    """The image processor of a folder, computed with Pillow."""
    if not (folder / "preprocessor_config.json").is_file():
        found = f"no file 'preprocessor_config.json' in '{folder}'"
        raise CheckpointError("model_path", found, "Point to a folder with the files of its image processor.")
    return _hf.AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, backend="pil")
