"""Normalisation of states and actions by statistics that live in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.statistics import compute_statistics

Scheme = Literal["quantile", "min_max", "mean_std", "identity"]
"""q01 and q99 to ±1; the least and the greatest to ±1; mean to 0 and standard deviation to 1; nothing."""

_EPS = 1e-8
_LEAST = 1e-6
"""A number that varies less than this is taken for a constant: divided by its spread, noise would swamp the model."""
_KEYS: dict[str, tuple[str, str]] = {"quantile": ("q01", "q99"), "min_max": ("min", "max"), "mean_std": ("mean", "std")}


class Normalizer(nn.Module):
    """x ↦ 2 (x − low) / (high − low + ε) − 1, or (x − mean) / (std + ε); and back.

    The two statistics are buffers: they travel, are saved and are loaded with the weights, and stay float32 when the weights
    become bfloat16. Until `set_statistics` they change nothing. OpenVLA and π0.5 use quantiles, π0 and GR00T mean and standard
    deviation, or the least and the greatest.

    A dimension that never varied is normalised to one number, whatever comes: with mean_std to 0, else to `constant`.

    Args:
        size: D, the last axis of what is normalised.
        scheme: which statistics.
        clip: whether normalised values are clipped to ±1; never for mean_std.
        constant: −1, what the formula gives for the only value there was (openpi, LeRobot); or 0, as OpenVLA, OpenVLA-OFT and
            GR00T have it in their data.
    """

    first: Tensor
    second: Tensor
    mask: Tensor

    def __init__(self, size: int, scheme: Scheme, *, clip: bool = False, constant: float = -1.0) -> None:
        super().__init__()
        self.constant = 0.0 if scheme == "mean_std" else constant
        self.scheme: Scheme = scheme
        self.clip = clip and scheme != "mean_std"
        neutral = (0.0, 1.0) if scheme == "mean_std" else (-1.0, 1.0)
        self.register_buffer("first", torch.full((size,), neutral[0]))
        self.register_buffer("second", torch.full((size,), neutral[1]))
        self.register_buffer("mask", torch.ones(size, dtype=torch.bool))

    @torch.no_grad()
    def set_statistics(self, statistics: Mapping[str, Any]) -> None:
        """Takes over statistics.

        Args:
            statistics: by name (`q01`, `q99`, `min`, `max`, `mean`, `std`), each `[D]`; `mask` `[D]` bool says what is
                normalised at all (a gripper often is not).

        Raises:
            ConfigError: one that the scheme needs is missing, not finite, or the other way round; nothing was changed.
            ShapeError: one has another size; nothing was changed.
        """
        if self.scheme == "identity":
            return
        keys = _KEYS[self.scheme]
        for key in keys:
            if key not in statistics:
                raise ConfigError(f"statistics.{key}", f"missing; '{self.scheme}' needs it", f"There are {sorted(statistics)}.")
        # Everything is checked before a buffer changes.
        first, second = (self._checked(self.first, statistics[key], key) for key in keys)
        mask = self._checked(self.mask, statistics["mask"], "mask") if "mask" in statistics else self.mask
        if bool((self._spread(first, second) < 0.0).any()):
            floor = "0" if keys[1] == "std" else keys[0]
            raise ConfigError(f"statistics.{keys[1]}", f"expected none below {floor}, found {_numbers(second)}")
        for buffer, values in ((self.first, first), (self.second, second), (self.mask, mask)):
            buffer.copy_(values)

    def fit(self, values: ArrayLike) -> None:
        """Takes the statistics of data `[N, D]`, of all its dimensions."""
        # Statistics that were there before may have left dimensions out.
        everywhere = np.ones(len(self.mask), np.bool_)
        self.set_statistics({**compute_statistics(values), "mask": everywhere})

    def statistics(self) -> dict[str, Tensor]:
        """What `set_statistics` takes, by name: copies."""
        if self.scheme == "identity":
            return {}
        first, second = _KEYS[self.scheme]
        return {first: self.first.clone(), second: self.second.clone(), "mask": self.mask.clone()}

    def normalize(self, x: Tensor) -> Tensor:
        """From the units of the environment to those of the model, `[*, D]`."""
        if self.scheme == "identity":
            return x
        if self.scheme == "mean_std":
            scaled = (x - self.first) / (self.second + _EPS)
        else:
            scaled = 2.0 * (x - self.first) / (self.second - self.first + _EPS) - 1.0
        scaled = torch.where(self._spread(self.first, self.second) < _LEAST, self.constant, scaled)
        scaled = scaled.clamp(-1.0, 1.0) if self.clip else scaled
        return torch.where(self.mask, scaled, x)

    def unnormalize(self, x: Tensor) -> Tensor:
        """From the units of the model to those of the environment, `[*, D]`; undoes `normalize` where nothing was clipped."""
        if self.scheme == "identity":
            return x
        if self.scheme == "mean_std":
            raw = x * (self.second + _EPS) + self.first
        else:
            raw = 0.5 * (x + 1.0) * (self.second - self.first + _EPS) + self.first
        return torch.where(self.mask, raw, x)

    def _spread(self, first: Tensor, second: Tensor) -> Tensor:
        return second if self.scheme == "mean_std" else second - first

    def _checked(self, buffer: Tensor, values: Any, key: str) -> Tensor:
        found = torch.as_tensor(values, dtype=buffer.dtype, device=buffer.device)
        if found.shape != buffer.shape:
            raise ShapeError(f"statistics.{key}", f"expected {tuple(buffer.shape)}, found {tuple(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise ConfigError(f"statistics.{key}", f"expected finite numbers, found {_numbers(found)}")
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the buffers with the module, but never makes them coarser: an action would lose its last digits."""
        kept = {"first": self.first, "second": self.second}
        super()._apply(fn, recurse)  # pyright: ignore[reportUnknownMemberType]
        for name, buffer in kept.items():
            moved: Tensor = getattr(self, name)
            if moved.itemsize < buffer.itemsize:
                setattr(self, name, buffer.to(moved.device))
        return self


def _numbers(values: Tensor) -> list[float]:
    return [float(value) for value in values]
