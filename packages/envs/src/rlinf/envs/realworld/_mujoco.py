"""The simulated arm. Only imported when one is connected."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.envs.realworld.arm import PANDA, Floats
from rlinf.envs.realworld.robot import Reading, RobotFault
from rlinf.envs.rendering._mujoco import ModelRenderer

# The libraries' stubs are partial; everything of theirs is used as untyped.
_mj: Any = mujoco

_STEP_S: Final = 0.002
_MASSES: Final = (4.97, 0.65, 3.23, 3.59, 1.23, 1.67, 0.74)
_INERTIA: Final = 0.02
_ARMATURE: Final = 0.1
_GAIN: Final = (120.0, 120.0, 120.0, 120.0, 20.0, 20.0, 20.0)
"""Newton metre seconds per radian, of the servos that follow a velocity."""
PEG_RADIUS: Final = 0.01
PEG_LENGTH: Final = 0.06
SOCKET_DEPTH: Final = 0.04
_WALL: Final = 0.02
_GRIPPER_SPEED: Final = 0.1
_WIDEST: Final = 0.08
_AWAY: Final = (0.0, 0.0, -1.0)
_OBJECTS: Final = ("socket", "goal")
"""What can be placed, in the order in which the model has them."""


class MujocoArm:
    """A `SimulatedRobot`."""

    def __init__(self, clearance: float, camera: int = 0) -> None:
        self.arm, self.camera = PANDA, camera
        # OpenGL's context belongs to one thread, and each client of a controller has a thread of its own.
        self._drawing = ThreadPoolExecutor(1, "camera") if camera else None
        self._renderer: ModelRenderer | None = None
        self._model = _mj.MjModel.from_xml_string(_xml(clearance))
        self._data = _mj.MjData(self._model)
        # The arm moves in one thread while another one looks at it.
        self._moving = threading.Lock()
        self._tool = {int(self._model.geom(name).id) for name in ("hand", "peg")}
        self._gripper = self._wanted = _WIDEST
        self._unplugged = False
        self._due = 0.0
        self.place(np.array(PANDA.home), {})

    def read(self) -> Reading:
        if self._unplugged:
            raise RobotFault("robot", "the arm doesn't answer", "Look at its plug and its network.")
        data = self._data
        return Reading(joints=data.qpos.copy(), velocity=data.qvel.copy(), force=self._force(), gripper=self._gripper)

    def drive(self, velocity: Floats, gripper: float | None) -> None:
        if self._unplugged:
            raise RobotFault("robot", "the arm doesn't answer", "Look at its plug and its network.")
        self._data.ctrl[:] = velocity
        if gripper is not None:
            self._wanted = min(max(gripper, 0.0), _WIDEST)

    def brake(self) -> None:
        # As an arm without power: its brakes fall in, whoever is connected.
        self._data.ctrl[:] = 0.0

    def recover(self) -> None:
        self.read()

    def frame(self) -> NDArray[np.uint8]:
        drawing = self._drawing
        if drawing is None:
            raise RobotFault("robot", "the arm has no camera", "Start it with camera=64, for 64 × 64 pixels.")
        try:
            # Without a deadline: whoever asked this process for the picture has one.
            return drawing.submit(self._draw).result()
        except RuntimeError as error:
            raise RobotFault("robot", f"its camera can't draw ({error})") from error

    def close(self) -> None:
        self.brake()
        if self._drawing is not None:
            drawing, self._drawing = self._drawing, None
            drawing.submit(self._end_drawing).result()
            drawing.shutdown()

    def advance(self, seconds: float) -> None:
        # What is left of a step is carried over: a period may be no multiple of it, or shorter.
        self._due += seconds
        steps = round(self._due / _STEP_S)
        self._due -= steps * _STEP_S
        with self._moving:
            for _ in range(steps):
                _mj.mj_step(self._model, self._data)
        step = _GRIPPER_SPEED * seconds
        self._gripper += min(max(self._wanted - self._gripper, -step), step)

    def place(self, joints: Floats, scene: Mapping[str, Any]) -> None:
        if unknown := set(scene) - set(_OBJECTS):
            raise ConfigError("robot", f"there is no object '{min(unknown)}' to place", f"It has: {', '.join(_OBJECTS)}.")
        with self._moving:
            _mj.mj_resetData(self._model, self._data)
            self._data.qpos[:] = joints
            self._data.mocap_pos[:] = [scene.get(name, _AWAY) for name in _OBJECTS]
            _mj.mj_forward(self._model, self._data)
        self._gripper = self._wanted = _WIDEST
        self._due = 0.0

    def unplug(self, unplugged: bool) -> None:
        self._unplugged = unplugged
        self.brake()

    def _draw(self) -> NDArray[np.uint8]:
        self._renderer = self._renderer or ModelRenderer(self._model, self.camera, "fast")
        # Drawn from a copy, so that the arm moves on meanwhile.
        with self._moving:
            seen = copy(self._data)
        return self._renderer.render(seen, "front")

    def _end_drawing(self) -> None:
        if self._renderer is not None:
            self._renderer.close()

    def _force(self) -> Floats:
        """What touches hand or peg, `[3]` newtons in the base frame."""
        total, wrench = np.zeros(3), np.zeros(6)
        for index in range(self._data.ncon):
            contact = self._data.contact[index]
            first, second = int(contact.geom1), int(contact.geom2)
            # Contacts within the tool, and of other things with each other, put no force on it.
            if (first in self._tool) == (second in self._tool):
                continue
            _mj.mj_contactForce(self._model, self._data, index, wrench)
            # It acts on the second one, in the contact's frame, whose axes are rows.
            force = np.asarray(contact.frame).reshape(3, 3).T @ wrench[:3]
            total += force if second in self._tool else -force
        return total


def _xml(clearance: float) -> str:
    """The arm, the table and the socket in MuJoCo's words."""
    links, ends = "", ""
    for index, (a, d, alpha) in enumerate(PANDA.links):
        turn = f"{np.cos(alpha / 2)} {np.sin(alpha / 2)} 0 0"
        low, high, mass = PANDA.joint_low[index], PANDA.joint_high[index], _MASSES[index]
        links += (
            f'<body pos="{a} {-np.sin(alpha) * d} {np.cos(alpha) * d}" quat="{turn}" gravcomp="1">'
            f'<inertial pos="0 0 0" mass="{mass}" diaginertia="{_INERTIA} {_INERTIA} {_INERTIA}"/>'
            f'<joint name="joint{index}" axis="0 0 1" range="{low} {high}" limited="true" armature="{_ARMATURE}"/>'
        )
        ends += "</body>"
    tip = PANDA.tool
    hand = (
        f'<geom name="hand" type="capsule" fromto="0 0 0.12 0 0 {tip - PEG_LENGTH - 0.03}" size="0.03" mass="0.7" '
        'rgba="0.2 0.3 0.8 1"/>'
        f'<geom name="peg" type="capsule" fromto="0 0 {tip - PEG_LENGTH} 0 0 {tip - PEG_RADIUS}" size="{PEG_RADIUS}" mass="0.05" '
        'rgba="0.9 0.8 0.1 1"/>'
    )
    servos = "".join(
        f'<velocity joint="joint{index}" kv="{_GAIN[index]}" forcelimited="true" forcerange="{-torque} {torque}"/>'
        for index, torque in enumerate(PANDA.torque)
    )
    inner, half = PEG_RADIUS + clearance, SOCKET_DEPTH / 2
    middle, outer = inner + _WALL / 2, inner + _WALL
    walls = "".join(
        f'<geom type="box" pos="{x} {y} {half}" size="{size_x} {size_y} {half}"/>'
        for x, y, size_x, size_y in (
            (middle, 0, _WALL / 2, outer),
            (-middle, 0, _WALL / 2, outer),
            (0, middle, inner, _WALL / 2),
            (0, -middle, inner, _WALL / 2),
        )
    )
    return (
        f'<mujoco><compiler angle="radian"/><option timestep="{_STEP_S}" integrator="implicitfast"/>'
        '<worldbody><light pos="0.5 0 2" dir="0 0 -1"/><geom name="table" type="plane" size="2 2 0.1" rgba="0.6 0.6 0.6 1"/>'
        # From the front and above, towards the middle of the workspace.
        '<camera name="front" pos="1.25 0 0.75" xyaxes="0 1 0 -0.625 0 0.781" fovy="45"/>'
        f'<body name="socket" mocap="true" pos="0 0 -1">{walls}</body>'
        # A mark that nothing touches.
        '<body name="goal" mocap="true" pos="0 0 -1"><geom type="sphere" size="0.025" contype="0" conaffinity="0" '
        f'rgba="0.9 0.1 0.1 1"/></body>{links}{hand}{ends}</worldbody>'
        f"<actuator>{servos}</actuator></mujoco>"
    )
