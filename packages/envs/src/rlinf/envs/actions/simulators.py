"""What each simulator wants of a vision-language-action model.

Such a model gives seven numbers: a change of position (x, y, z), a change of rotation as axis–angle, and a gripper, which is 1 for
open and 0 for closed (`unit_open`) in the datasets of Open X-Embodiment. Position and rotation must be in the simulator's own scale
already: undo the normalisation of the training data first (`unscale`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from numpy.typing import ArrayLike

from rlinf.core.errors import ShapeError
from rlinf.envs.actions.arrays import Doubles, Floats, doubles
from rlinf.envs.actions.formats import Bounds, Gripper, Identity, Pick, register_action_format


@dataclass(frozen=True, slots=True)
class OfSevenNumbers:
    """A format of such a model."""

    change: Gripper | Pick

    def __call__(self, action: ArrayLike, /) -> Floats:
        """The action `[..., 7]` as the simulator wants it."""
        doubles(action, "action", 7)
        return self.change(action)

    def accepts(self, low: Doubles, high: Doubles) -> Bounds:
        """Seven numbers."""
        least, most = self.change.accepts(low, high)
        if len(least) != 7:
            raise ShapeError("action", f"the model's would have {len(least)} and not 7")
        return least, most


_WITHOUT_ROTATION: Final = Pick(columns=(0, 1, 2, 6), size=7)

libero: Final = register_action_format("libero", OfSevenNumbers(Gripper(source="unit_open", target="sign_closed", threshold=0.5)))
"""LIBERO and robosuite: the gripper from 1 open, 0 closed to −1 open, +1 closed, nothing between."""
maniskill: Final = register_action_format(
    "maniskill", OfSevenNumbers(Gripper(source="unit_open", target="sign_open", threshold=0.5))
)
"""ManiSkill's `pd_ee_delta_pose`: the gripper from 1 open, 0 closed to +1 open, −1 closed, nothing between."""
maniskill_panda: Final = register_action_format("maniskill_panda", Identity())
"""ManiSkill's own controllers, with the model trained on their actions: nothing changes, `[..., A]`."""
calvin: Final = register_action_format("calvin", OfSevenNumbers(Gripper(source="sign_open", target="sign_open", threshold=0.0)))
"""CALVIN: the gripper from any positive number for open, any other for closed, to +1 and −1."""
metaworld: Final = register_action_format("metaworld", OfSevenNumbers(_WITHOUT_ROTATION))
"""MetaWorld: to position and gripper `[..., 4]`; the gripper keeps its number (positive closes there)."""
franka_sim: Final = register_action_format("franka_sim", OfSevenNumbers(_WITHOUT_ROTATION))
"""The MuJoCo Franka tasks: to position and gripper `[..., 4]`; the gripper keeps its number."""
roboverse: Final = register_action_format(
    "roboverse", OfSevenNumbers(Gripper(source="sign_closed", target="unit_open", threshold=0.0))
)
"""RoboVerse, with π0: the gripper becomes 1 where the model's number is negative, 0 elsewhere."""

SIMULATORS: Final[Mapping[str, str]] = {
    "libero": "libero",
    "robosuite": "libero",
    "maniskill": "maniskill",
    "calvin": "calvin",
    "metaworld": "metaworld",
    "frankasim": "franka_sim",
}
"""The format of seven numbers that each environment takes, by their registered names."""
