"""Images that are drawn only where somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class ImagesOnDemand:
    """The images in the observations of one environment.

    Args:
        draw: draws them all, by embodied key, in the present state, without a trace in the simulation.
    """

    def __init__(self, draw: Callable[[], dict[str, NDArray[np.uint8]]]) -> None:
        self._draw = draw
        self._drawn: dict[str, NDArray[np.uint8]] = {}
        self.wanted = True
        """Whether somebody looks at the next observation."""
        self.stale = False
        """Whether the last observation has the images of an earlier one."""

    def observe(self) -> dict[str, NDArray[np.uint8]]:
        """Those of an observation of the present state: where nobody looks, the ones that were drawn last."""
        if self.wanted:
            self._drawn = self._draw()
        self.stale = not self.wanted
        return self._drawn

    def refresh(self, observation: Any) -> Any:
        """The last observation, with the images of the present state, in which it was made, if somebody looks."""
        return {**observation, **self.observe()} if self.stale and self.wanted else observation


@runtime_checkable
class DrawsOnDemand(Protocol):
    """An environment that can leave the images out of a step."""

    images_on_demand: ImagesOnDemand | None
    """None if it observes no images."""
