"""Images as a camera gives them become pixels as a model wants them.

    images [*, H, W, 3] uint8 → fit: crop, resize, pad → [*, h, w, 3] uint8 → standardize → [*, 3, h, w] float32

The pipelines of the public models are settings of `fit`:

| model | settings |
|---|---|
| openpi (π0, π0.5) | `fit="pad"` |
| OpenVLA, OpenVLA-OFT | `filter="lanczos", rounding="once", crop_scale=0.9, crop_of="area"` |
| GR00T N1.5 | `rounding="down", crop_scale=0.95` |
| image processors of Hugging Face | `filter="bicubic"`, or what their `resample` says |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.observations.resampling import Filter, Rounding, crop_area, resample

Fit = Literal["stretch", "pad", "crop"]
"""How another ratio of sides is met: both sides stretched; black bars; what sticks out is cut off."""

CropOf = Literal["sides", "area"]
"""The kept part of each side, cut before resizing (GR00T); of the area, cut and blown up after resizing (OpenVLA)."""

HALF = (0.5, 0.5, 0.5)
"""Mean and standard deviation that map levels 0 to 255 to −1 to 1."""


def fit_images(
    images: Any,
    size: int | tuple[int, int],
    *,
    fit: Fit = "stretch",
    filter: Filter = "bilinear",
    antialias: bool = True,
    rounding: Rounding = "pillow",
    crop_scale: float | None = None,
    crop_of: CropOf = "sides",
) -> Tensor:
    """Camera images in the size of a model, still 8 bits: the smallest form that `standardize` can be applied to later.

    Args:
        images: `[*, H, W, 3]` uint8, NumPy or torch; neither kept nor changed.
        size: height and width of the result, or both in one.
        fit: what happens where the ratio of sides differs.
        filter: the kernel.
        antialias: whether the kernel grows when images shrink.
        rounding: when levels become whole numbers again; see `Rounding`.
        crop_scale: the central part that is kept, in (0, 1]; all if None.
        crop_of: what `crop_scale` is a part of.

    Returns:
        `[*, h, w, 3]` uint8 on the images' device; memory of its own.

    Raises:
        ShapeError: images have another shape or type.
        ConfigError: an argument has a value that it can't have.
    """
    source = _images(images)
    height, width = _size(size)
    _check(fit, crop_of, crop_scale)
    x = source.flatten(0, -4) if source.dim() > 3 else source[None]
    if crop_scale is not None and crop_of == "sides":
        x = _centre(x, int(x.shape[1] * crop_scale), int(x.shape[2] * crop_scale))
    inner = _inner(fit, x.shape[1], x.shape[2], height, width)
    x = resample(x, *inner, filter, antialias, rounding)
    if inner != (height, width):
        x = _padded(x, height, width) if fit == "pad" else _centre(x, height, width)
    if crop_scale is not None and crop_of == "area":
        x = crop_area(x, crop_scale)
    out = x.reshape(*source.shape[:-3], height, width, source.shape[-1])
    return out.clone() if out.data_ptr() == source.data_ptr() else out.contiguous()


def resize(
    images: Any,
    size: int | tuple[int, int],
    *,
    filter: Filter = "bilinear",
    antialias: bool = True,
    rounding: Rounding = "pillow",
) -> Tensor:
    """Images `[*, H, W, 3]` uint8 stretched to a size; see `fit_images`."""
    return fit_images(images, size, filter=filter, antialias=antialias, rounding=rounding)


def standardize(images: Tensor, *, mean: Sequence[float] = HALF, std: Sequence[float] = HALF) -> Tensor:
    """Levels become numbers, channels first: (x / 255 − mean) / std.

    Args:
        images: `[*, h, w, 3]` uint8.
        mean: of each channel, of levels in [0, 1].
        std: the standard deviation of each channel.

    Returns:
        `[*, 3, h, w]` float32.
    """
    centre = torch.tensor(list(mean), dtype=torch.float32, device=images.device)
    spread = torch.tensor(list(std), dtype=torch.float32, device=images.device)
    return ((images.to(torch.float32) / 255.0 - centre) / spread).movedim(-1, -3).contiguous()


def _images(images: Any) -> Tensor:
    tensor = images if isinstance(images, Tensor) else torch.tensor(np.asarray(images))
    if tensor.dim() < 3 or tensor.shape[-1] != 3 or tensor.dtype != torch.uint8:
        raise ShapeError(
            "images", f"expected [*, H, W, 3] uint8, found {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        )
    if 0 in tensor.shape[-3:]:
        raise ShapeError("images", f"expected pixels, found {list(tensor.shape)}")
    return tensor


def _size(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ConfigError("size", f"expected a positive height and width, found {size}")
    return height, width


def _check(fit: str, crop_of: str, crop_scale: float | None) -> None:
    if fit not in ("stretch", "pad", "crop"):
        raise ConfigError("fit", f"expected stretch, pad or crop, found '{fit}'")
    if crop_of not in ("sides", "area"):
        raise ConfigError("crop_of", f"expected sides or area, found '{crop_of}'")
    expect_range("crop_scale", crop_scale, 0.0, 1.0, open_low=True)


def _inner(fit: Fit, height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """The size that the picture itself gets."""
    if fit == "stretch" or (height, width) == (target_height, target_width):
        return target_height, target_width
    ratios = (width / target_width, height / target_height)
    ratio = max(ratios) if fit == "pad" else min(ratios)
    # Fractions of a pixel are cut off, as in openpi.
    inner = max(int(height / ratio), 1), max(int(width / ratio), 1)
    # A rounded quotient may be cut to one pixel less than what is cropped from it.
    return inner if fit == "pad" else (max(inner[0], target_height), max(inner[1], target_width))


def _centre(images: Tensor, height: int, width: int) -> Tensor:
    height, width = max(height, 1), max(width, 1)
    # Half to even, as torchvision's center_crop.
    top, left = round((images.shape[1] - height) / 2.0), round((images.shape[2] - width) / 2.0)
    return images[:, top : top + height, left : left + width]


def _padded(images: Tensor, height: int, width: int) -> Tensor:
    out = images.new_zeros(len(images), height, width, images.shape[-1])
    # An odd row or column goes below or to the right, as in openpi.
    top, left = (height - images.shape[1]) // 2, (width - images.shape[2]) // 2
    out[:, top : top + images.shape[1], left : left + images.shape[2]] = images
    return out
