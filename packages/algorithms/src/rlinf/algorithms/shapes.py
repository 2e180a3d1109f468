"""Checks of shapes and of hyper-parameters: an error that names the argument, before any arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlinf.core.errors import ConfigError, ShapeError


def expect_shape(place: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuses a tensor that has not exactly `shape`.

    Raises:
        ShapeError: the message names `place` and both shapes.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(place, f"expected shape {tuple(shape)}, found {tuple(tensor.shape)}")


def expect_leading(place: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuses a tensor whose first sizes are not `shape`.

    Raises:
        ShapeError: the message names `place` and both shapes.
    """
    if tuple(tensor.shape[: len(shape)]) != tuple(shape):
        raise ShapeError(place, f"expected leading sizes {tuple(shape)}, found {tuple(tensor.shape)}")


def expect_range(place: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuses a hyper-parameter outside [low, high], or (low, high] if `open_low`; None passes.

    Raises:
        ConfigError: the message names the range and the value.
    """
    if value is None:
        return
    above = value > low if open_low else value >= low
    if not (above and value <= high):
        bracket = "(" if open_low else "["
        raise ConfigError(place, f"expected a value in {bracket}{low:g}, {high:g}], found {value:g}")
