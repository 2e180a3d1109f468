"""An arm that does at once what it is told, so that what its controller does can be computed by hand."""

from __future__ import annotations

import numpy as np

from rlinf.envs.realworld import PANDA, Command, Controller, ControllerConfig, Reading, RobotFault

PERIOD = 0.01


class PointArm:
    """Joints without mass."""

    def __init__(self):
        self.arm, self.joints, self.velocity = PANDA, np.array(PANDA.home), np.zeros(7)
        self.force, self.answers, self.gripper, self.brakes, self.closed = np.zeros(3), True, 0.08, 0, False

    def read(self):
        if not self.answers:
            raise RobotFault("robot", "the arm doesn't answer")
        return Reading(joints=self.joints.copy(), velocity=self.velocity.copy(), force=self.force, gripper=self.gripper)

    def drive(self, velocity, gripper):
        self.velocity = np.array(velocity)
        self.gripper = self.gripper if gripper is None else gripper

    def brake(self):
        self.velocity, self.brakes = np.zeros(7), self.brakes + 1

    def recover(self):
        self.read()

    def close(self):
        self.closed = True
        self.brake()


class Bench:
    """A controller, its arm and a clock."""

    def __init__(self, **config):
        self.arm = PointArm()
        self.controller = Controller(self.arm, ControllerConfig(**config))
        self.now = 0.0

    def submit(self, kind, values, seconds=0.1, gripper=None):
        command = Command(kind=kind, values=np.array(values, float), seconds=seconds, gripper=gripper)
        return self.controller.submit(command, self.now)

    def run(self, seconds):
        for _ in range(round(seconds / PERIOD)):
            self.controller.tick(self.now)
            self.arm.joints = self.arm.joints + PERIOD * self.arm.velocity
            self.now += PERIOD

    @property
    def tool(self):
        return PANDA.pose(self.arm.joints).position

    @property
    def counts(self):
        return {name: count for name, count in self.controller.state()["counts"].items() if count}
