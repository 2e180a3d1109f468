"""torch, imported when something is first computed: a module that holds a loss is read for its configuration, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rlinf.core.lazy import lazy_module

if TYPE_CHECKING:
    import torch as torch
else:
    torch = lazy_module("torch")

P = ParamSpec("P")
R = TypeVar("R")


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad()` as a decorator, whose own would import torch where the function is defined."""

    @functools.wraps(function)
    def without_gradient(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            return function(*args, **kwargs)

    return without_gradient
