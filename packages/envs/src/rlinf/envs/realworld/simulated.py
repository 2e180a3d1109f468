"""`SimulatedFranka`: a Franka arm in MuJoCo. Importing this imports no simulator."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.core.config import expect_range
from rlinf.core.registry import require_modules
from rlinf.envs.realworld.robot import SimulatedRobot
from rlinf.envs.rendering.mujoco import require_rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFranka:
    """A Franka arm with a peg in its hand, above a table with a socket; of the arm only what touches is simulated and drawn.

    Dimensions, limits and torques are those of the data sheet; masses and the gains of its joints are near those of an arm.
    """

    socket_clearance: float = 0.004
    """Metres by which the socket is wider than the peg, on each side."""
    camera: int = 0
    """Pixels of its camera, each way, which looks at the workspace from the front; 0: it has none."""

    def check(self, place: str) -> None:
        """Refuses early what `connect` would refuse late.

        Raises:
            MissingExtra: MuJoCo is not installed.
            ConfigError: it has a camera of a size that can't be, or nothing can be drawn here.
        """
        require_modules("mujoco", place=place, extra="rlinf-envs[mujoco]")
        expect_range(f"{place}.camera", self.camera, 0, 1024)
        if self.camera:
            require_rendering(f"{place}.camera")

    def connect(self) -> SimulatedRobot:
        """The arm, at rest where an episode begins."""
        self.check("robot")
        from rlinf.envs.realworld._mujoco import MujocoArm

        return MujocoArm(self.socket_clearance, self.camera)
