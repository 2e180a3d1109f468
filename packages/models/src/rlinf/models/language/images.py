"""Images of a Qwen-VL model as columns of a trajectory, so that rows can be split, padded, joined and shuffled.

Such a model cuts an image into patches, and merges m × m of them (m = 2) into one token. They stand at the token's column:

    image_patches  [B, T, m · m · P]   the m · m patches that the token `<image>` of this column stands for; 0 elsewhere
    image_grid     [B, T, 3]           frames, rows and columns of patches, where an image begins; 0 elsewhere

Columns of text carry zeros: the price of one layout for everything. In bfloat16 it is 9 KiB a column for Qwen2.5-VL.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from rlinf.core.errors import ShapeError
from rlinf.models.language.network import as_network
from rlinf.models.language.tokens import INPUT_IDS, SEGMENT_IDS, restarting_positions

IMAGE_PATCHES: Final = "image_patches"
IMAGE_GRID: Final = "image_grid"


def image_columns(
    input_ids: Tensor, pixel_values: Tensor, image_grid_thw: Tensor, *, image_token_id: int, merge: int = 2
) -> dict[str, Tensor]:
    """What the image processor of the model made, as leaves of the context.

    Args:
        input_ids: `[B, T]`, with the token of images repeated for every merged patch.
        pixel_values: `[N, P]`, the patches of all images in the order of their tokens, row after row.
        image_grid_thw: `[I, 3]`, frames, rows and columns of patches of each image.
        image_token_id: the token that stands for a merged patch.
        merge: m, `spatial_merge_size` of the model.

    Raises:
        ShapeError: tokens, patches and grids don't fit each other.
    """
    at = (input_ids == image_token_id).flatten().nonzero().squeeze(-1)
    counts = image_grid_thw.prod(-1) // merge**2
    if len(at) != int(counts.sum()) or len(at) * merge**2 != len(pixel_values):
        found = f"{len(at)} tokens, {len(pixel_values)} patches and grids of {int(counts.sum())} tokens"
        raise ShapeError("image_columns(pixel_values)", f"expected {merge**2} patches for each image token, found {found}")
    patches = pixel_values.new_zeros((input_ids.numel(), merge**2 * pixel_values.shape[-1]))
    patches[at] = pixel_values.reshape(len(at), -1)
    grid = image_grid_thw.new_zeros((input_ids.numel(), 3))
    # The sum of the counts before an image is the index of its first token.
    grid[at[counts.cumsum(0) - counts]] = image_grid_thw
    shape = tuple(input_ids.shape)
    return {IMAGE_PATCHES: patches.view(*shape, -1), IMAGE_GRID: grid.view(*shape, 3)}


def images_of(context: dict[str, Tensor], is_image: Tensor, merge: int) -> tuple[Tensor, Tensor] | None:
    """`pixel_values` `[N, P]` and `image_grid_thw` `[I, 3]` of a context; None if it shows nothing.

    Raises:
        ShapeError: there are tokens of images, but no images.
    """
    if not bool(is_image.any()):
        return None
    if IMAGE_PATCHES not in context or IMAGE_GRID not in context:
        found = f"tokens of images, but only {sorted(context)}"
        raise ShapeError("default_forward(context)", f"expected '{IMAGE_PATCHES}' and '{IMAGE_GRID}', found {found}")
    patches, grid = context[IMAGE_PATCHES][is_image], context[IMAGE_GRID]
    return patches.reshape(len(patches) * merge**2, -1), grid[grid[..., 0] > 0]


class VisionInputs:
    """The inputs of a Qwen-VL model: patches, grids, and positions along frames, rows and columns of images.

    Args:
        image_token_id: the token that stands for a merged patch.
        merge: m, `spatial_merge_size` of the model.
    """

    def __init__(self, image_token_id: int, merge: int) -> None:
        self.image_token_id, self.merge = image_token_id, merge

    def __call__(self, network: nn.Module, context: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Inputs`; `position_ids` `[4, B, T]`: along the text, which is what parts sequences, and the three of an image."""
        ids, segments = context[INPUT_IDS], context[SEGMENT_IDS]
        along = restarting_positions(segments)
        # expand shares one memory among all four, of which three are written below.
        positions = along.expand(4, *along.shape).clone()
        arguments = {"input_ids": ids, "position_ids": positions}
        is_image = (ids == self.image_token_id) & (segments > 0)
        shown = images_of(context, is_image, self.merge)
        if shown is not None:
            arguments["pixel_values"], arguments["image_grid_thw"] = shown
            positions[1:, segments > 0] = self._rope(network, ids, segments, along, shown[1])
        return arguments

    def _rope(self, network: nn.Module, ids: Tensor, segments: Tensor, along: Tensor, grid: Tensor) -> Tensor:
        """`[3, n]` for the n tokens that are no padding; the model's own function wants a row for each sequence."""
        real = segments > 0
        row = (real & (along == 0)).flatten().cumsum(0).view_as(ids)[real] - 1
        place = along[real]
        rows = ids.new_zeros((int(row.max()) + 1, int(place.max()) + 1))
        attention = torch.zeros_like(rows)
        rows[row, place], attention[row, place] = ids[real], 1
        types = ((rows == self.image_token_id) & attention.bool()).int()
        model = as_network(network).base_model
        positions, _ = model.get_rope_index(rows, mm_token_type_ids=types, image_grid_thw=grid, attention_mask=attention)
        return positions[:, row, place]
