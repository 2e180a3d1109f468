"""Resizing of 8-bit images, level for level as the libraries do that the public models were trained with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rlinf.core.errors import ConfigError

Filter = Literal["bilinear", "bicubic", "lanczos", "nearest"]
"""The kernel: a triangle, Keys' cubic with a = −½, Lanczos with three lobes, or the nearest pixel."""

Rounding = Literal["pillow", "once", "down"]
"""When levels become whole numbers again: after each of the two passes (Pillow); once, to the nearest (TensorFlow); once, the
fraction cut off (GR00T: floats of torchvision times 255, cast)."""

_BITS = 22
"""The fraction bits of Pillow's coefficients: what an 8-bit level leaves of 32 bits, with two to spare."""


def resample(images: Tensor, height: int, width: int, kernel: Filter, antialias: bool, rounding: Rounding) -> Tensor:
    """Resizes images `[N, H, W, C]` uint8 to `[N, height, width, C]` uint8; columns first, then rows.

    So did Pillow up to version 12; from 13 on it takes the order that is less work, whose rounding is another.
    """
    if rounding not in ("pillow", "once", "down"):
        raise ConfigError("rounding", f"expected pillow, once or down, found '{rounding}'")
    if kernel == "nearest":
        return _nearest(_nearest(images, 2, width), 1, height)
    if kernel not in _KERNELS:
        raise ConfigError("filter", f"expected nearest, {', '.join(_KERNELS)}, found '{kernel}'")
    if rounding == "down":
        return _cut(images, height, width, kernel, antialias)
    x = images.to(torch.int32 if rounding == "pillow" else torch.float32)
    for axis, size in ((2, width), (1, height)):
        if x.shape[axis] != size:
            x = _pass(x, axis, size, kernel, antialias)
    return (x if rounding == "pillow" else x.round().clamp(0.0, 255.0)).to(torch.uint8)


def _pass(x: Tensor, axis: int, size: int, kernel: str, antialias: bool) -> Tensor:
    """One axis: y[i] = Σₖ w[i, k] x[index[i, k]], in fixed point if x is whole numbers."""
    index, weight = _taps(x.shape[axis], size, kernel, antialias)
    fixed = not x.is_floating_point()
    columns = torch.as_tensor(index).to(x.device)
    weights = torch.as_tensor(_fixed_point(weight) if fixed else weight.astype(np.float32)).to(x.device)
    shape = [1] * x.dim()
    shape[axis] = size
    # Half a level to begin with, so that the shift at the end rounds instead of cutting.
    out = x.new_full([size if i == axis else n for i, n in enumerate(x.shape)], 1 << (_BITS - 1) if fixed else 0)
    for k in range(index.shape[1]):
        # Tap by tap: one gather would need an axis for the taps.
        out.addcmul_(x.index_select(axis, columns[:, k]), weights[:, k].view(shape))
    return (out >> _BITS).clamp_(0, 255) if fixed else out


def _fixed_point(weight: NDArray[np.float64]) -> NDArray[np.int32]:
    # Half away from zero, as Pillow rounds its coefficients.
    return np.trunc(weight * (1 << _BITS) + np.copysign(0.5, weight)).astype(np.int32)


@cache
def _taps(size_in: int, size_out: int, kernel: str, antialias: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which pixels make up each output pixel, and their weights, each `[size_out, taps]`; must not be changed.

    Pixel i of the output is centred at (i + ½) s, s = size_in / size_out. With antialiasing the kernel is stretched by s where
    s > 1. Weights beyond the edge are left out, and the others add up to 1.
    """
    function, radius = _KERNELS[kernel]
    scale = size_in / size_out
    stretch = max(scale, 1.0) if antialias else 1.0
    support = radius * stretch
    centre = (np.arange(size_out) + 0.5) * scale
    first = np.maximum(np.trunc(centre - support + 0.5), 0).astype(np.int64)
    after = np.minimum(np.trunc(centre + support + 0.5), size_in).astype(np.int64)
    index = first[:, None] + np.arange(int((after - first).max()))
    inside = index < after[:, None]
    weight = np.where(inside, function((index - centre[:, None] + 0.5) / stretch), 0.0)
    # Added one after another, as in C: a pairwise sum could differ in the last bit.
    total = np.add.accumulate(weight, axis=1)[:, -1:]
    return np.minimum(index, size_in - 1), weight / total


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), eq. 15, a = −½."""
    x, a = np.abs(x), -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((x >= -3.0) & (x < 3.0), np.sinc(x) * np.sinc(x / 3.0), 0.0)


_KERNELS: dict[str, tuple[Callable[[NDArray[Any]], NDArray[Any]], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""Each kernel and its radius in pixels."""


def _nearest(images: Tensor, axis: int, size: int) -> Tensor:
    if images.shape[axis] == size:
        return images
    step = images.shape[axis] / size
    # Step by step, as in Pillow: the product i · step may fall on another pixel.
    position = np.add.accumulate(np.concatenate(([0.5 * step], np.full(size - 1, step))))
    return images.index_select(axis, torch.as_tensor(position.astype(np.int64)).to(images.device))


def _cut(images: Tensor, height: int, width: int, kernel: str, antialias: bool) -> Tensor:
    """Torch's own interpolation in [0, 1], then the cast: a level that comes out a hair too low loses one, as in the original."""
    if kernel == "lanczos":
        raise ConfigError("rounding", "'down' knows bilinear and bicubic only, found lanczos", "Use 'pillow' or 'once'.")
    x = images.movedim(-1, 1).to(torch.float32) / 255.0
    if (height, width) != tuple(x.shape[2:]):
        x = F.interpolate(x, size=(height, width), mode=kernel, align_corners=False, antialias=antialias)
    return (x.clamp(0.0, 1.0) * 255.0).to(torch.uint8).movedim(1, -1)


def crop_area(images: Tensor, area: float) -> Tensor:
    """The central part of `area` of each image, blown up to the whole: `tf.image.crop_and_resize` of 8-bit images.

    The corners of the part become the corners of the result; bilinear between pixels. Images become [0, 1] first and levels
    again by 255.5 x, cut off, as `tf.image.convert_image_dtype` does.

    Args:
        images: `[N, H, W, C]` uint8.
        area: in (0, 1]; each side keeps its square root.
    """
    side = min(math.sqrt(area), 1.0)
    x = images.to(torch.float32) / 255.0
    for axis in (1, 2):
        x = _stretch(x, axis, side)
    return (x.clamp(0.0, 1.0) * 255.5).clamp_max(255.0).to(torch.uint8)


def _stretch(x: Tensor, axis: int, side: float) -> Tensor:
    size = x.shape[axis]
    # In float32, as TensorFlow's kernel.
    start = np.float32((1.0 - side) / 2.0) * np.float32(size - 1)
    step = np.float32(side) if size > 1 else np.float32(0.0)
    position = (start + np.arange(size, dtype=np.float32) * step).astype(np.float32)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(np.ceil(position).astype(np.int64), size - 1)
    shape = [1] * x.dim()
    shape[axis] = size
    part = torch.as_tensor(position - low.astype(np.float32)).to(x.device).view(shape)
    below, above = (x.index_select(axis, torch.as_tensor(i).to(x.device)) for i in (low, high))
    return below + (above - below) * part
