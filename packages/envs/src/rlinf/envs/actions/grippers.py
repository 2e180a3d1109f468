"""The command to a gripper: which end is open, in which range, graded or only open and closed."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.envs.actions.arrays import Floats, like, numbers

GripperSign = Literal["unit_open", "unit_closed", "sign_open", "sign_closed"]
"""What a gripper's number means:

- `unit_open`: 0 is closed, 1 is open (the datasets that OpenVLA and π0 were trained on);
- `unit_closed`: 0 is open, 1 is closed;
- `sign_open`: −1 is closed, +1 is open (ManiSkill, CALVIN);
- `sign_closed`: −1 is open, +1 is closed (LIBERO, robosuite, MetaWorld).
"""

_ENDS: Final[dict[str, tuple[float, float]]] = {
    "unit_open": (0.0, 1.0),
    "unit_closed": (1.0, 0.0),
    "sign_open": (-1.0, 1.0),
    "sign_closed": (1.0, -1.0),
}


def gripper_ends(sign: GripperSign) -> tuple[float, float]:
    """The numbers that mean closed and open.

    Raises:
        ConfigError: there is no such convention.
    """
    if sign not in _ENDS:
        raise ConfigError("gripper", f"no gripper convention is named '{sign}'", did_you_mean(sign, list(_ENDS)))
    return _ENDS[sign]


def convert_gripper(command: ArrayLike, source: GripperSign, target: GripperSign) -> Floats:
    """A graded command `[...]` under another convention; values beyond the ends stay beyond them."""
    (closed, opened), (to_closed, to_open) = gripper_ends(source), gripper_ends(target)
    openness = (numbers(command, "gripper") - closed) / (opened - closed)
    return like(to_closed + openness * (to_open - to_closed), command)


def binarise(value: ArrayLike, *, threshold: float, above: float, below: float) -> Floats:
    """`above` where the value is greater than the threshold, else `below`; NaN stays NaN, so that it is refused and not obeyed.

    Args:
        value: `[...]`.
        threshold: the value itself counts as below.
        above: the command for greater values.
        below: the command for all others.
    """
    given = numbers(value, "gripper")
    return like(np.where(np.isnan(given), np.nan, np.where(given > threshold, above, below)), value)
