"""Images on their way from the camera to the policy: size, and random changes while training.

The functions work on batches `[N, H, W, C]` uint8 and take what is random as arguments, one entry for each image, so that equal
arguments give equal pixels. The wrappers draw from the episode's seed and the number of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.random import keyed_generator
from rlinf.envs.spaces import single_spaces
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, Step, episode_seeds, reset_rows, unmasked

Images = NDArray[np.uint8]
Singles = NDArray[np.float32]
IMAGE_KEYS = ("main_images", "wrist_images", "extra_view_images")
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, what Pillow and torchvision call grey


def shift(images: Images, offset: NDArray[np.int64]) -> Images:
    """Moves each image; the border is repeated where nothing is left.

    With offsets drawn uniformly from −p … p it is the pad-and-crop of Yarats et al., "Image Augmentation Is All You Need" (2020),
    arXiv:2004.13649, with p pixels of padding.

    Args:
        images: `[N, H, W, C]`.
        offset: `[N, 2]`, by how many pixels the window moves down and to the right; the content moves the other way.
    """
    count, height, width = _sizes(images)
    rows = np.clip(np.arange(height) + offset[:, :1], 0, height - 1)
    columns = np.clip(np.arange(width) + offset[:, 1:], 0, width - 1)
    return images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def crop(images: Images, corner: NDArray[np.int64], size: tuple[int, int]) -> Images:
    """A window of each image.

    Args:
        images: `[N, H, W, C]`.
        corner: `[N, 2]`, row and column of the window's first pixel.
        size: height and width of the window.

    Raises:
        ShapeError: a window reaches beyond its image.
    """
    count, height, width = _sizes(images)
    limit = np.array([height - size[0], width - size[1]])
    if (corner < 0).any() or (corner > limit).any():
        raise ShapeError("images.crop", f"a window of {list(size)} doesn't fit into images of {[height, width]} where it was put")
    rows, columns = corner[:, :1] + np.arange(size[0]), corner[:, 1:] + np.arange(size[1])
    return images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def center_crop(images: Images, size: tuple[int, int]) -> Images:
    """The middle of each image, `[N, *size, C]`; half a pixel too high and too far left where it can't be exact."""
    count, height, width = _sizes(images)
    corner = np.array([(height - size[0]) // 2, (width - size[1]) // 2])
    return crop(images, np.broadcast_to(corner, (count, 2)), size)


def resize(images: Images, size: tuple[int, int]) -> Images:
    """Each image in another size, by linear interpolation.

    What gets smaller is averaged over as many pixels as become one, so that nothing flickers (antialiasing); the result is that of
    Pillow's `resize(…, Resampling.BILINEAR)` to within one grey level. A difference to plain bilinear sampling is a difference
    between training and evaluation that a policy feels: use one of them everywhere.

    Args:
        images: `[N, H, W, C]`.
        size: height and width of the result.
    """
    _, height, width = _sizes(images)
    if (height, width) == tuple(size):
        return images
    pixels = images.astype(np.float32)
    pixels = np.einsum("yh,nhwc->nywc", _weights(height, size[0]), pixels, optimize=True)
    pixels = np.einsum("xw,nywc->nyxc", _weights(width, size[1]), pixels, optimize=True)
    return _rounded(pixels)


def jitter(images: Images, *, brightness: Singles, contrast: Singles, saturation: Singles) -> Images:
    """Changes the colours: brightness, then contrast, then saturation; a factor of 1 leaves an image as it is.

    Brightness scales the pixels; contrast moves them away from the mean grey of their image, saturation from their own grey, as in
    torchvision's `ColorJitter`.

    Args:
        images: `[N, H, W, 3]`.
        brightness: `[N]`, at least 0.
        contrast: `[N]`, at least 0.
        saturation: `[N]`, at least 0.
    """
    _sizes(images)
    pixels = images.astype(np.float32)
    if (brightness != 1).any():
        pixels = np.clip(pixels * _each(brightness), 0, 255)
    if (contrast != 1).any():
        mean = (pixels @ _LUMA).mean(axis=(1, 2))[:, None, None, None]
        pixels = np.clip(mean + (pixels - mean) * _each(contrast), 0, 255)
    if (saturation != 1).any():
        grey = (pixels @ _LUMA)[..., None]
        pixels = np.clip(grey + (pixels - grey) * _each(saturation), 0, 255)
    return _rounded(pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes of training images; all that is left at its default does nothing."""

    shift: int = 0
    """Up to how many pixels an image is moved, each way; 4 for 84 pixels is usual."""
    crop: float = 1.0
    """The least part of the area that is shown, blown up to the full size; in evaluation show the middle of it."""
    brightness: float = 0.0
    """b: the factor is drawn from 1 − b … 1 + b."""
    contrast: float = 0.0
    """The same for the distance of pixels from the mean grey of their image."""
    saturation: float = 0.0
    """The same for the distance of pixels from their own grey."""
    per_episode: bool = False
    """One draw for an episode instead of one for each step."""

    def __post_init__(self) -> None:
        expect_at_least("shift", self.shift, 0, "4 pixels are usual.")
        expect_range("crop", self.crop, 0.0, 1.0, open_low=True, remedy="It is a part of the area, such as 0.9.")
        for name in ("brightness", "contrast", "saturation"):
            expect_range(name, getattr(self, name), 0.0, 1.0, remedy="0.2 is usual.")

    def apply(self, images: Images, generators: list[np.random.Generator]) -> Images:
        """The images `[N, H, W, 3]`, each changed with its own generator."""
        if self.shift:
            offset = np.array([g.integers(-self.shift, self.shift + 1, size=2) for g in generators])
            images = shift(images, offset)
        if self.crop < 1:
            images = np.concatenate([self._cropped(image[None], g) for image, g in zip(images, generators, strict=True)])
        if self.brightness or self.contrast or self.saturation:
            reach = np.array([self.brightness, self.contrast, self.saturation], np.float32)
            factors = np.array([1 + reach * g.uniform(-1, 1, size=3) for g in generators], np.float32).T
            images = jitter(images, brightness=factors[0], contrast=factors[1], saturation=factors[2])
        return images

    def _cropped(self, image: Images, generator: np.random.Generator) -> Images:
        _, height, width = _sizes(image)
        # A part of the area; each side shrinks by its root.
        side = np.sqrt(generator.uniform(self.crop, 1.0))
        size = (max(1, round(height * side)), max(1, round(width * side)))
        room = np.array([height - size[0] + 1, width - size[1] + 1])
        window = crop(image, generator.integers(room)[None], size)
        return resize(window, (height, width))


class AugmentImages(Wrapper):
    """Changes the images of an environment at random, for training; an evaluation leaves it out.

    What is drawn depends on the episode's seed and the step in it, and differs between cameras. It goes inside
    an `EnforceContract`, which gives it the seeds, also where an `init_id` takes their place.

    Args:
        env: an environment with images `[N, H, W, 3]` or `[N, V, H, W, 3]` uint8 under the embodied keys.
        augmentation: which changes.

    Raises:
        ConfigError: there are no images, or an augmentation moves all of an image out of sight.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any], augmentation: Augmentation) -> None:
        super().__init__(env)
        self._augmentation = augmentation
        self._keys = _image_keys(env, "augmentation")
        for key in self._keys:
            height, width = self.single_observation_space.spaces[key].shape[-3:-1]
            if augmentation.shift >= min(height, width):
                problem = f"moves images by up to {augmentation.shift} pixels, and '{key}' has {height} × {width}"
                raise ConfigError("augmentation.shift", problem, "4 for 84 pixels is usual.")
        self._seeds = [0] * env.num_envs
        self._step = np.zeros(env.num_envs, np.int64)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        seeds = episode_seeds(seed, self.num_envs)
        for row in np.flatnonzero(reset_rows(options, self.num_envs)):
            self._seeds[row], self._step[row] = seeds[row], 0
        observations, infos = self.env.reset(seed=seeds, options=options)
        return self._augmented(observations), infos

    def step(self, actions: Any) -> Step:
        """One step of every environment, with images changed anew."""
        result = self.env.step(actions)
        self._step += unmasked(actions, self.num_envs)[1]
        return self._augmented(result[0]), *result[1:]

    def _augmented(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = dict(observations)
        for number, key in enumerate(self._keys):
            images = changed[key]
            views = images.shape[1] if images.ndim == 5 else 1
            rows = [self._generator(row, number) for row in range(self.num_envs)]
            flat = images.reshape(-1, *images.shape[-3:])
            # The views of an environment share a generator and draw from it in turn, so they differ.
            changed[key] = self._augmentation.apply(flat, [row for row in rows for _ in range(views)]).reshape(images.shape)
        return changed

    def _generator(self, row: int, number: int) -> np.random.Generator:
        step = 0 if self._augmentation.per_episode else int(self._step[row])
        return keyed_generator(self._seeds[row], "augmentation", step, number)


class ResizeImages(Wrapper):
    """Gives images the size that a policy wants: the middle of each, resized with antialiasing.

    It stands in training and in evaluation alike; a random crop of training takes its place there.

    Args:
        env: an environment with images under the embodied keys.
        size: height and width.
        center_crop: the part of the area that is kept, in (0, 1].

    Raises:
        ConfigError: there are no images, or a size or part that can't be.
    """

    passes_unseen_steps: ClassVar[bool] = True

    def __init__(self, env: VectorEnv[Any, Any, Any], size: tuple[int, int], *, center_crop: float = 1.0) -> None:
        super().__init__(env)
        if min(size) < 1 or not 0 < center_crop <= 1:
            problem = f"expected a size ≥ 1 and a part in (0, 1], found {size} and {center_crop}"
            raise ConfigError("resize", problem, "Give for instance (224, 224) and 0.9.")
        self._size, self._part = size, center_crop
        self._keys = _image_keys(env, "resize")
        spaces = dict(self.single_observation_space.spaces)
        for key in self._keys:
            shape = (*spaces[key].shape[:-3], *size, spaces[key].shape[-1])
            spaces[key] = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.single_observation_space = gymnasium.spaces.Dict(spaces)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._resized(observations), infos

    def step(self, actions: Any) -> Step:
        result = self.env.step(actions)
        return self._resized(result[0]), *result[1:]

    def _resized(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = dict(observations)
        for key in self._keys:
            images = changed[key]
            flat = images.reshape(-1, *images.shape[-3:])
            _, height, width = _sizes(flat)
            side = np.sqrt(self._part)
            flat = center_crop(flat, (max(1, round(height * side)), max(1, round(width * side))))
            changed[key] = resize(flat, self._size).reshape(*images.shape[:-3], *self._size, images.shape[-1])
        return changed


def _image_keys(env: VectorEnv[Any, Any, Any], place: str) -> list[str]:
    spaces = single_spaces(env)[0].spaces
    found = [key for key in IMAGE_KEYS if key in spaces]
    if not found:
        raise ConfigError(place, f"there are no images among the observations {sorted(spaces)}", f"It works on {IMAGE_KEYS}.")
    return found


def _sizes(images: Images) -> tuple[int, int, int]:
    if images.ndim != 4 or images.dtype != np.uint8:
        raise ShapeError("images", f"expected uint8 [N, H, W, C], found {images.dtype} {list(images.shape)}")
    return images.shape[0], images.shape[1], images.shape[2]


def _each(factor: Singles) -> Singles:
    return np.asarray(factor, np.float32)[:, None, None, None]


def _rounded(pixels: NDArray[np.floating[Any]]) -> Images:
    # A bare cast cuts decimals off, half a grey level on average.
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _weights(count: int, wanted: int) -> Singles:
    """`[wanted, count]`, how much each pixel of a line counts for each pixel of the line in its new size."""
    scale = count / wanted
    reach = max(scale, 1.0)
    # Pixels have their centres at halves, as in Pillow.
    middle = (np.arange(wanted) + 0.5) * scale
    weights = np.clip(1 - np.abs(np.arange(count) + 0.5 - middle[:, None]) / reach, 0, None)
    # At the border fewer pixels are in reach, and their weights must add up to 1 all the same.
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
