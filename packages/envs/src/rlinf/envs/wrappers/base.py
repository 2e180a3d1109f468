"""The base of our wrappers, for every version of Gymnasium that we allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gymnasium.vector import VectorWrapper

if TYPE_CHECKING:
    Wrapper: TypeAlias = VectorWrapper[Any, Any, Any]
else:
    Wrapper = VectorWrapper  # takes type arguments only from Gymnasium 1.4 on
