"""The base of our wrappers, for every version of Gymnasium that we allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorWrapper

if TYPE_CHECKING:

    class Wrapper(VectorWrapper[Any, Any, Any]):
        """Gymnasium's wrapper without its types of what is inside: those know one seed for all, and spaces only in part."""

        env: Any
        observation_space: Any
        action_space: Any
        single_observation_space: Any
        single_action_space: Any
else:
    Wrapper = VectorWrapper  # takes type arguments only from Gymnasium 1.4 on
