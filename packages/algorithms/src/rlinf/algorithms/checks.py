"""Checks of shapes and of hyper-parameters: an error that names the argument, before any arithmetic."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, ShapeError, nearest

if TYPE_CHECKING:
    from torch import Tensor


_TENSORS: Final = ("Tensor", "Tensor | None")
P = ParamSpec("P")
R = TypeVar("R")


def takes_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: what is annotated as a tensor must be one, or None where that is allowed.

    Raises:
        ShapeError: of the decorated function; the message names the argument, and what was found.
    """
    parameters = inspect.signature(function).parameters
    # Annotations are texts here, so that nothing is imported for their sake.
    optional = {name: each.annotation != "Tensor" for name, each in parameters.items() if each.annotation in _TENSORS}
    names, place = tuple(parameters), getattr(function, "__name__", "")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in optional and not isinstance(value, torch.Tensor) and not (value is None and optional[name]):
                remedy = "" if value is None else "Make one of numbers: torch.as_tensor(…)."
                raise ShapeError(f"{place}({name})", f"expected a tensor, found {type(value).__name__}", remedy)
        return function(*args, **kwargs)

    return checked


def expect_shape(place: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuses a tensor that has not exactly `shape`.

    Raises:
        ShapeError: the message names `place` and both shapes.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(place, f"expected shape {tuple(shape)}, found {tuple(tensor.shape)}")


def expect_fraction(place: str, value: float | Tensor) -> None:
    """Refuses a discount or a λ outside [0, 1]: one number, or a tensor of them.

    Raises:
        ConfigError: the message names the range and a value outside it.
    """
    # Of a configuration it is a number: to ask torch about it would import torch.
    if "torch" not in sys.modules or not isinstance(value, torch.Tensor):
        expect_range(place, cast("float", value), 0.0, 1.0)
        return
    # `aminmax` of nothing raises.
    if value.numel() == 0:
        return
    # Both bounds in one transfer: on a GPU each one waits for all work before it.
    low, high = cast("list[float]", torch.stack(value.detach().aminmax()).tolist())  # pyright: ignore[reportUnknownMemberType]
    expect_range(place, low, 0.0, 1.0)
    expect_range(place, high, 0.0, 1.0)


def expect_ordered(place: str, low: float | None, high: float | None) -> None:
    """Refuses two bounds between which nothing lies, and one that is not a number; None is no bound.

    Raises:
        ConfigError: the message names both.
    """
    least, greatest = float("-inf") if low is None else low, float("inf") if high is None else high
    if not least <= greatest:
        raise ConfigError(place, f"expected at most the upper bound {greatest:g}, found {least:g}")


def expect_choice(place: str, value: str, choices: Sequence[str]) -> None:
    """Refuses a word that is none of `choices`.

    Raises:
        ConfigError: the message has all of them, and the nearest.
    """
    if value not in choices:
        guess = nearest(str(value), choices)
        remedy = f"Did you mean '{guess}'?" if guess else ""
        raise ConfigError(place, f"expected one of {', '.join(choices)}, found {value!r}", remedy)


def expect_names(place: str, names: Tensor) -> None:
    """Refuses the names of groups or of episodes that are not whole numbers: what is rounded would be one group with another.

    Raises:
        ShapeError: the message names `place` and the type.
    """
    # A hash above 2²⁴ is not exact in float32, so two groups would silently become one.
    if names.is_floating_point() or names.is_complex() or names.dtype == torch.bool:
        raise ShapeError(place, f"expected integers, found {names.dtype}", "Number the groups, then convert them with .long().")


def expect_finite(**values: float) -> None:
    """Refuses hyper-parameters that are infinite or not a number.

    Raises:
        ConfigError: the message names the first.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConfigError(name, f"expected a finite number, found {value}")


def expect_not_negative(**values: float) -> None:
    """Refuses hyper-parameters below 0.

    Raises:
        ConfigError: the message names the first.
    """
    for name, value in values.items():
        expect_range(name, value, 0.0, math.inf)


def required(inputs: object, name: str, *, by: str, remedies: Mapping[str, str]) -> Any:
    """A field that must be there.

    Args:
        inputs: what has the field.
        name: the field.
        by: who needs it, for the message.
        remedies: what to do about a missing field, by name.

    Raises:
        ShapeError: it is None; the message names it.
    """
    found = getattr(inputs, name)
    if found is None:
        raise ShapeError(f"{by}({name})", "expected a tensor, found None", remedies.get(name, ""))
    return found
