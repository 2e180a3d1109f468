"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torch import nn

from rlinf.core.errors import UnknownName, did_you_mean

ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


def make_activation(name: str, *, place: str = "activation") -> nn.Module:
    """The activation of that name.

    Args:
        name: a key of `ACTIVATIONS`.
        place: who asks, for the message.

    Raises:
        UnknownName: there is no such activation.
    """
    if name not in ACTIVATIONS:
        raise UnknownName(place, f"no activation named '{name}'", did_you_mean(name, list(ACTIVATIONS)))
    return ACTIVATIONS[name]()
