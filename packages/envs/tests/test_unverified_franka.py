"""The driver of a Franka arm, against a franky that behaves as its documentation says."""

from __future__ import annotations

import importlib.util
import time
import types

import numpy as np
import pytest
from fake_modules import put_module

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.envs.realworld import ControllerClient, RobotFault, Serving
from rlinf.envs.realworld.robot import ROBOTS
from rlinf.envs.unverified.franka import Franka

START = np.array([0.0, -0.4, 0.0, -2.0, 0.0, 1.6, 0.8])
LAST = {}


class Motion:
    def __init__(self, *args):
        self.args = args


def named(name):
    return type(name, (Motion,), {})


JointVelocityMotion, JointVelocityStopMotion = map(named, ("JointVelocityMotion", "JointVelocityStopMotion"))
Duration, RelativeDynamicsFactor = map(named, ("Duration", "RelativeDynamicsFactor"))


class Robot:
    def __init__(self, address, realtime_config):
        self.address, self.kernel, self.log, self.recovered = address, realtime_config, [], 0
        self.has_errors = self.unplugged = False
        LAST["robot"] = self

    @property
    def state(self):
        if self.unplugged:
            raise RuntimeError("libfranka: UDP receive: Timeout")
        return types.SimpleNamespace(q=START.copy(), dq=np.full(7, 0.1), O_F_ext_hat_K=np.arange(6.0))

    def move(self, motion, asynchronous=False):
        assert asynchronous, "the controller's thread would wait for it"
        if self.unplugged:
            raise RuntimeError("libfranka: connection lost")
        self.log.append(motion)

    def recover_from_errors(self):
        self.recovered += 1
        self.has_errors = False


class Gripper:
    def __init__(self, address):
        self.here, self.log, self.refused = 0.08, [], 0
        self.unplugged = False
        LAST["gripper"] = self

    @property
    def width(self):
        if self.unplugged:
            self.refused += 1
            raise RuntimeError("libfranka gripper: TCP connection got interrupted")
        return self.here

    def move_async(self, width, speed):
        self.log.append(("move", width, speed))

    def grasp_async(self, width, speed, force, epsilon_outer):
        self.log.append(("grasp", width, speed, force))


@pytest.fixture
def franky(monkeypatch):
    kinds = (Robot, Gripper, JointVelocityMotion, JointVelocityStopMotion, Duration, RelativeDynamicsFactor)
    realtime = types.SimpleNamespace(Enforce="enforce", Ignore="ignore")
    LAST.clear()
    return put_module(monkeypatch, "franky", {"RealtimeConfig": realtime, **{kind.__name__: kind for kind in kinds}})


@pytest.fixture
def connect(franky):
    arms = []

    def arm(**fields):
        arms.append(Franka(robot_ip="10.0.0.2", **fields).connect())
        return arms[-1], LAST["robot"], LAST["gripper"]

    yield arm
    for each in arms:
        each.close()


def test_it_is_a_registered_robot_that_is_listed_as_unverified():
    assert ROBOTS.get("franka") is Franka
    assert "franka" in ROBOTS.unverified()


def test_it_reads_joints_force_and_gripper(connect):
    arm, robot, gripper = connect()
    assert (robot.address, robot.kernel, robot.log) == ("10.0.0.2", "enforce", [])
    reading = arm.read()
    np.testing.assert_array_equal(reading.joints, START)
    np.testing.assert_array_equal(reading.velocity, np.full(7, 0.1))
    assert (reading.force.tolist(), reading.gripper) == ([0.0, 1.0, 2.0], 0.08)
    gripper.here, end = 0.03, time.monotonic() + 30
    while arm.read().gripper != 0.03:
        assert time.monotonic() < end, "the width is not followed"
        time.sleep(0.01)


def test_a_gripper_that_is_silent_is_told_of_once(connect, caplog):
    arm, _, gripper = connect()
    gripper.unplugged, end = True, time.monotonic() + 30
    while gripper.refused < 3:
        assert time.monotonic() < end, "it is not asked"
        time.sleep(0.01)
    arm.close()
    assert arm.read().gripper == 0.08
    (told,) = caplog.messages
    assert "the gripper doesn't answer (libfranka gripper: TCP connection got interrupted): its width stays at" in told


def test_each_velocity_replaces_the_one_before_and_ends_of_itself(connect):
    arm, robot, _ = connect(dynamics=0.3)
    arm.drive(np.full(7, 0.2), None)
    arm.drive(np.full(7, 0.4), None)
    velocity, hold, dynamics = robot.log[-1].args
    assert (len(robot.log), velocity.tolist()) == (2, [0.4] * 7)
    assert (hold.args, dynamics.args) == ((100,), (1.0, 0.3, 0.3))


def test_it_is_told_to_brake_once_and_never_raises(connect):
    arm, robot, _ = connect()
    arm.brake()
    assert robot.log == []
    arm.drive(np.zeros(7), None)
    for _ in range(3):
        arm.brake()
    assert [type(motion).__name__ for motion in robot.log] == ["JointVelocityMotion", "JointVelocityStopMotion"]
    arm.drive(np.zeros(7), None)
    robot.unplugged = True
    arm.brake()


def test_the_gripper_is_told_what_changes(connect):
    arm, _, gripper = connect(grip_speed=0.05, grip_force=10.0)
    for width in (None, 0.08, 0.04, 0.0405, 0.0, 0.0, 0.08):
        arm.drive(np.zeros(7), width)
    assert gripper.log == [("move", 0.04, 0.05), ("grasp", 0.0, 0.05, 10.0), ("move", 0.08, 0.05)]


def test_what_the_driver_raises_is_a_fault_of_the_robot(connect):
    arm, robot, _ = connect()
    robot.has_errors = True
    with pytest.raises(RobotFault, match="the arm has stopped itself"):
        arm.drive(np.zeros(7), None)
    arm.recover()
    assert (robot.recovered, robot.has_errors) == (1, False)
    robot.unplugged = True
    for ask in (arm.read, arm.recover, lambda: arm.drive(np.zeros(7), None)):
        with pytest.raises(RobotFault, match="the arm doesn't answer: libfranka"):
            ask()


@pytest.mark.parametrize(("field", "value"), [("dynamics", 0.0), ("dynamics", 1.1), ("grip_speed", 0.5), ("grip_force", 100.0)])
def test_wrong_numbers(franky, field, value):
    with pytest.raises(ConfigError, match=rf"robot\.{field}: expected"):
        Franka(robot_ip="10.0.0.2", **{field: value}).connect()
    assert not LAST


def test_without_the_driver():
    if importlib.util.find_spec("franky") is not None:
        pytest.skip("franky is installed")
    with pytest.raises(MissingExtra, match="'franky-control'"):
        Franka(robot_ip="10.0.0.2").check("robot")


@pytest.mark.slow
def test_a_simulated_arm_behind_the_real_driver():
    """In an interpreter of its own: uv pip install franky-control franky-sim gymnasium hypothesis pytest pytest-timeout."""
    pytest.importorskip("franky")
    simulation = pytest.importorskip("franky_sim").SimulationServer
    simulator = pytest.importorskip("franky_sim.mujoco_simulator").MujocoSimulator
    with simulator() as world:
        arm = world.add_robot()
        with simulation(world) as running:
            running.run_async()
            params = {"robot_ip": arm.hostname, "realtime": False}
            server = Serving(robot="rlinf.envs.unverified.franka:Franka", params=params).built()
            server.start()
            client = ControllerClient(server.address)
            home, state, end = np.array(client.info.home), client.state(), time.monotonic() + 60
            while np.abs(state.joints - home).max() > 0.03:
                assert time.monotonic() < end, "it does not come home"
                state = client.act("joint_position", home, seconds=0.1)
            start = state.position
            for _ in range(20):
                state = client.act("tool_motion", [0, 0, -0.01, 0, 0, 0], seconds=0.1, gripper=0.0)
            moved = state.position - start
            assert moved[2] < -0.02
            assert np.abs(moved[:2]).max() < 0.01
            assert state.gripper < 0.03
            client.stop("a test")
            time.sleep(1.0)
            state = client.state()
            assert state.stopped == "a test"
            assert np.abs(state.velocity).max() < 0.02
            client.recover()
            assert client.act("tool_motion", [0, 0, 0.02, 0, 0, 0], seconds=0.1).stopped == ""
            client.close()
            server.close()
