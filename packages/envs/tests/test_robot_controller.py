"""A controller of an arm: where it brings the tool, what it refuses, and when it stops."""

from __future__ import annotations

import numpy as np
import pytest
from point_arm import Bench

from rlinf.core.errors import ConfigError
from rlinf.envs.realworld import PANDA, ControllerConfig, Limits, RobotFault
from rlinf.envs.realworld.arm import rotation_error, turned
from rlinf.envs.realworld.limits import Guard
from rlinf.envs.realworld.robot import Reading

READY = np.array([0, -np.pi / 4, 0, -3 * np.pi / 4, 0, np.pi / 2, np.pi / 4])


def test_the_tool_of_an_arm_that_is_ready_is_where_its_maker_says():
    pose = PANDA.pose(READY)
    # Franka's own tools show 0.307, 0, 0.487 for the hand in this posture, pointing down.
    np.testing.assert_allclose(pose.position, [0.3069, 0.0, 0.4869], atol=1e-3)
    np.testing.assert_allclose(pose.rotation, np.diag([1.0, -1.0, -1.0]), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_jacobian_is_that_of_differences(seed):
    joints = np.random.default_rng(seed).uniform(-1, 1, 7)
    jacobian, step = PANDA.pose(joints).jacobian, 1e-6
    for joint in range(7):
        high, low = (PANDA.pose(joints + sign * step * np.eye(7)[joint]) for sign in (1, -1))
        np.testing.assert_allclose((high.position - low.position) / (2 * step), jacobian[:3, joint], atol=1e-6)
        np.testing.assert_allclose(rotation_error(high.rotation, low.rotation) / (2 * step), jacobian[3:, joint], atol=1e-6)


def test_a_turn_is_by_its_axis_and_angle():
    quarter = turned(np.eye(3), np.array([0, 0, np.pi / 2]))
    np.testing.assert_allclose(quarter @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_array_equal(turned(quarter, np.zeros(3)), quarter)


def test_the_tool_goes_where_it_is_told_and_keeps_its_direction():
    bench = Bench()
    start = bench.tool
    for _ in range(5):
        assert bench.submit("tool_motion", [0.02, -0.01, 0.01, 0, 0, 0]) == ""
        bench.run(0.1)
    # Each motion begins where the tool is, so that the last part of each is made up for by the next.
    np.testing.assert_allclose(bench.tool - start, [0.1, -0.05, 0.05], atol=0.02)
    np.testing.assert_allclose(PANDA.pose(bench.arm.joints).rotation, PANDA.pose(np.array(PANDA.home)).rotation, atol=0.01)
    assert bench.counts == {}


def test_joints_go_to_a_position_and_the_gripper_to_a_width():
    bench = Bench()
    wanted = np.array(PANDA.home) + 0.2
    for _ in range(20):
        assert bench.submit("joint_position", wanted, gripper=0.02) == ""
        bench.run(0.1)
    np.testing.assert_allclose(bench.arm.joints, wanted, atol=1e-3)
    assert bench.arm.gripper == 0.02


def test_an_arm_that_nobody_commands_any_more_stands_still():
    bench = Bench(watchdog_s=0.15)
    bench.submit("joint_velocity", [0.3, 0, 0, 0, 0, 0, 0])
    bench.run(0.14)
    assert bench.arm.velocity[0] == 0.3
    assert not bench.controller.holding
    bench.run(0.05)
    assert bench.arm.velocity[0] == 0.0
    assert bench.controller.holding
    assert bench.counts == {"watchdog": 1}
    assert 0.15 < bench.controller.stop_s <= 0.2
    # It is no fault: the next command is followed.
    assert bench.submit("joint_velocity", [0.3, 0, 0, 0, 0, 0, 0]) == ""
    bench.run(0.05)
    assert bench.arm.velocity[0] == 0.3


@pytest.mark.parametrize("kind", ["joint_velocity", "joint_position", "tool_motion"])
def test_a_command_beyond_the_limits_is_clipped_or_refused_and_counted(kind):
    values = {"joint_velocity": [9.0] + [0.0] * 6, "joint_position": [9.0] * 7, "tool_motion": [0, 0, -0.5, 0, 0, 0]}[kind]
    limit = {"joint_velocity": "velocity", "joint_position": "joint", "tool_motion": "velocity"}[kind]
    clipping, refusing = Bench(), Bench(limits=Limits(on_violation="refuse"))
    assert limit in clipping.submit(kind, values)
    clipping.run(0.1)
    assert clipping.counts[limit] == 1
    assert refusing.submit(kind, values).startswith("refused: beyond the limits of")
    refusing.run(0.1)
    assert refusing.counts["refused"] == 1
    np.testing.assert_array_equal(refusing.arm.joints, PANDA.home)


def test_no_velocity_is_above_the_limit():
    bench = Bench(limits=Limits(speed=0.1, tool_speed=2.0))
    bench.submit("joint_velocity", [9.0] * 7)
    bench.run(0.05)
    # Scaled as a whole by the slowest joint, or less.
    assert (np.abs(bench.arm.velocity) <= 0.1 * np.array(PANDA.joint_speed) + 1e-9).all()
    assert bench.arm.velocity.max() > 0.1
    slow = Bench(limits=Limits(tool_speed=0.05))
    slow.submit("joint_velocity", [1.0, 0, 0, 0, 0, 0, 0])
    slow.run(0.05)
    speed = np.linalg.norm(PANDA.pose(slow.arm.joints).jacobian[:3] @ slow.arm.velocity)
    assert speed == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(("axis", "sign"), [(0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, -1)])
@pytest.mark.parametrize("kind", ["tool_motion", "joint_velocity"])
def test_the_tool_stays_in_the_workspace_whatever_is_asked(kind, axis, sign):
    limits = Limits(workspace_low=(0.45, -0.1, 0.1), workspace_high=(0.6, 0.1, 0.25))
    bench = Bench(limits=limits)
    motion = np.zeros(6)
    motion[axis] = 0.04 * sign
    for _ in range(40):
        jacobian = PANDA.pose(bench.arm.joints).jacobian
        asked = motion if kind == "tool_motion" else np.linalg.pinv(jacobian) @ (motion / 0.1)
        bench.submit(kind, asked)
        bench.run(0.1)
        assert (bench.tool > np.array(limits.workspace_low) - 0.005).all()
        assert (bench.tool < np.array(limits.workspace_high) + 0.005).all()
    assert bench.counts["workspace"] > 0


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_leads_along_a_wall_of_the_workspace_goes_on(sign):
    """Out of it and sideways at once: what leads out is taken away, and nothing else."""
    pose = PANDA.pose(np.array(PANDA.home))
    reading = Reading(joints=np.array(PANDA.home), velocity=np.zeros(7), force=np.zeros(3), gripper=0.04)
    low, high = pose.position - 0.2, pose.position + 0.2
    (high if sign > 0 else low)[0] = pose.position[0]
    guard = Guard(PANDA, Limits(workspace_low=tuple(low), workspace_high=tuple(high)))
    given = np.linalg.pinv(pose.jacobian) @ [0.1 * sign, 0.2, -0.05, 0, 0, 0]
    found = guard.filter(given, reading, pose)
    np.testing.assert_allclose(pose.jacobian[:3] @ found, [0.0, 0.2, -0.05], atol=1e-4)
    assert guard.counts["workspace"] == 1


@pytest.mark.parametrize("what", ["clip", "refuse"])
def test_a_tool_outside_of_the_workspace_may_go_back_in_small_motions_and_no_further_out(what):
    start = PANDA.pose(np.array(PANDA.home)).position
    low, high = start - 0.5, start + np.array([-0.1, 0.5, 0.5])
    limits = Limits(workspace_low=tuple(low), workspace_high=tuple(high), tool_speed=2.0, on_violation=what)
    bench = Bench(limits=limits)
    assert bench.submit("tool_motion", [-0.02, 0, 0, 0, 0, 0]) == ""
    bench.run(0.1)
    np.testing.assert_allclose(bench.tool - start, [-0.02, 0, 0], atol=0.01)
    verdict = bench.submit("tool_motion", [0.02, 0, 0, 0, 0, 0])
    assert verdict == ("workspace" if what == "clip" else "refused: beyond the limits of workspace")
    before = bench.tool
    bench.run(0.1)
    np.testing.assert_allclose(bench.tool, before, atol=0.01)


@pytest.mark.parametrize(("joint", "sign"), [(0, 1), (3, -1), (5, 1)])
def test_joints_stay_off_the_ends_of_their_ranges(joint, sign):
    everywhere = Limits(workspace_low=(-2, -2, -2), workspace_high=(2, 2, 2), tool_speed=2.0)
    bench = Bench(limits=everywhere)
    velocity = np.zeros(7)
    velocity[joint] = sign * 1.0
    for _ in range(60):
        bench.submit("joint_velocity", velocity)
        bench.run(0.1)
    low, high = np.array(PANDA.joint_low) + everywhere.joint_margin, np.array(PANDA.joint_high) - everywhere.joint_margin
    assert ((bench.arm.joints >= low) & (bench.arm.joints <= high)).all()
    assert bench.counts["joint"] > 0


def test_too_much_force_stops_the_arm_until_somebody_has_looked():
    bench = Bench(limits=Limits(force=20.0))
    bench.submit("joint_velocity", [0.3] + [0.0] * 6)
    bench.arm.force = np.array([0.0, 0.0, 19.0])
    bench.run(0.02)
    assert bench.arm.velocity[0] == 0.3
    bench.arm.force = np.array([0.0, 15.0, 15.0])
    bench.run(0.02)
    assert bench.arm.velocity[0] == 0.0
    assert bench.controller.stopped.startswith("force: 21 N")
    bench.arm.force = np.zeros(3)
    assert bench.submit("joint_velocity", [0.3] + [0.0] * 6).startswith("refused: the arm is stopped")
    bench.run(0.05)
    assert bench.arm.velocity[0] == 0.0
    assert bench.counts == {"force": 1, "stops": 1, "refused": 1}
    bench.controller.recover()
    assert bench.submit("joint_velocity", [0.3] + [0.0] * 6) == ""


def test_an_arm_that_does_not_answer_is_stopped_and_recovers_only_when_it_does():
    bench = Bench()
    bench.submit("joint_velocity", [0.3] + [0.0] * 6)
    bench.run(0.02)
    bench.arm.answers = False
    bench.run(0.02)
    assert bench.controller.stopped == "fault: the arm doesn't answer"
    assert bench.arm.brakes >= 1
    with pytest.raises(RobotFault, match="doesn't answer"):
        bench.controller.recover()
    assert bench.controller.stopped
    bench.arm.answers = True
    bench.controller.recover()
    assert not bench.controller.stopped


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        ("joint_velocity", [np.nan] * 7, "not a number"),
        ("tool_motion", [np.inf] * 6, "infinite"),
        ("tool_motion", [0.0] * 3, "takes 6 numbers"),
        ("joint_position", [[0.0] * 7], "takes 7 numbers"),
        ("jump", [0.0], "there is no command 'jump'"),
    ],
)
def test_nonsense_is_refused_and_the_arm_stands_still(kind, values, why):
    bench = Bench()
    bench.submit("joint_velocity", [0.3] + [0.0] * 6)
    bench.run(0.02)
    verdict = bench.submit(kind, values)
    assert verdict.startswith("refused")
    assert why in verdict
    bench.run(0.02)
    assert not bench.arm.velocity.any()


def test_limits_and_watchdogs_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="watchdog_s"):
        ControllerConfig(watchdog_s=2.0)
    with pytest.raises(ConfigError, match="workspace_low"):
        Limits(workspace_low=(0.8, 0, 0))
    with pytest.raises(ConfigError, match="workspace_low"):
        Limits(workspace_low=(0.3, 0.3, 0.01), workspace_high=(0.7, 0.3, 0.6))
    for name, high in (("speed", 1.01), ("tool_speed", 2.01), ("force", 500.1)):
        for value in (0.0, high):
            with pytest.raises(ConfigError, match=name):
                Limits(**{name: value})
