"""The adapter to a real arm, against a driver that behaves as franky's documentation says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, DeadlineExceeded, MissingExtra
from rlinf.envs.unverified.franka import Franka
from rlinf.envs.wrappers.contract import EnvMisuse

START = np.array([0.0, -0.4, 0.0, -2.0, 0.0, 1.6, 0.8])


class Affine:
    def __init__(self, translation, quaternion):
        self.translation, self.quaternion = np.array(translation), np.array(quaternion)


class Motion:
    def __init__(self, *args):
        self.args = args


def named(name):
    return type(name, (Motion,), {})


CartesianMotion, JointMotion, CartesianStopMotion, JointStopMotion = map(
    named, ("CartesianMotion", "JointMotion", "CartesianStopMotion", "JointStopMotion")
)


class Robot:
    """An arm that is at once where it is sent, or that never moves."""

    def __init__(self, address, realtime_config):
        self.address, self.kernel, self.log, self.stuck = address, realtime_config, [], False
        self.joints, self.pose = START.copy(), Affine([0.5, 0.0, 0.3], [1.0, 0.0, 0.0, 0.0])
        self.recovered = self.joined = 0
        LAST["robot"] = self

    def recover_from_errors(self):
        self.recovered += 1

    def join_motion(self, timeout):
        self.joined += 1

    def move(self, motion, asynchronous=False):
        self.log.append(type(motion).__name__)
        if isinstance(motion, CartesianMotion) and not self.stuck:
            assert asynchronous
            self.pose = motion.args[0]
        if isinstance(motion, JointMotion) and not self.stuck:
            self.joints = np.array(motion.args[0])

    @property
    def current_joint_state(self):
        return types.SimpleNamespace(position=self.joints)

    @property
    def current_cartesian_state(self):
        return types.SimpleNamespace(pose=types.SimpleNamespace(end_effector_pose=self.pose))


class Gripper:
    def __init__(self, address):
        self.width, self.log = 0.08, []
        LAST["gripper"] = self

    def open_async(self, speed):
        self.log.append("open")

    def grasp_async(self, width, speed, force, epsilon_outer):
        self.log.append("grasp")


class Human:
    def __init__(self):
        self.stop, self.done, self.asked, self.absent = False, False, 0, False
        LAST["human"] = self

    def stopped(self):
        return self.stop

    def await_ready(self, deadline):
        if self.absent:
            raise DeadlineExceeded("operator", f"nobody confirmed within {deadline:.0f} s")
        self.asked += 1
        self.stop = self.done = False

    def solved(self):
        return self.done

    def image(self):
        return np.full((4, 6, 3), 7, np.uint8)


LAST = {}


@pytest.fixture
def franky(monkeypatch):
    module = types.ModuleType("franky")
    module.__spec__ = importlib.machinery.ModuleSpec("franky", None)
    kinds = (Affine, Robot, Gripper, CartesianMotion, JointMotion, CartesianStopMotion, JointStopMotion)
    for kind in kinds:
        setattr(module, kind.__name__, kind)
    module.RealtimeConfig = types.SimpleNamespace(Enforce="enforce", Ignore="ignore")
    module.ReferenceType = types.SimpleNamespace(Absolute="absolute")
    people = types.ModuleType("people")
    people.Human = Human
    monkeypatch.setitem(sys.modules, "franky", module)
    monkeypatch.setitem(sys.modules, "people", people)
    LAST.clear()
    return module


def config(**changes):
    fields = {"robot_ip": "10.0.0.2", "operator": "people:Human", "confirm_hardware": True, "step_seconds": 0.001}
    return Franka(**{**fields, **changes})


def make(limit=50, **changes):
    return config(**changes).make(1, max_episode_steps=limit, ignore_terminations=False, render=False)


def act(*values):
    return np.array([values], np.float32)


def test_it_refuses_to_run_unconfirmed(franky):
    with pytest.raises(ConfigError, match=r"env\.confirm_hardware: this would move a real arm"):
        make(confirm_hardware=False)
    assert not LAST


def test_the_hand_moves_by_the_action_and_stays_in_the_workspace(franky):
    env = make(max_translation=0.02, image_size=(4, 6), description="pick the cube")
    seen, _ = env.reset(seed=0)
    assert seen in env.observation_space
    robot = LAST["robot"]
    assert (robot.address, robot.kernel, robot.relative_dynamics_factor, robot.recovered) == ("10.0.0.2", "enforce", 0.05, 1)
    assert seen["states"][0] == pytest.approx([*START, 0.5, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0, 0.08])
    seen = env.step(act(1, -0.5, 0, 0, 0, 0, 0))[0]
    assert seen["states"][0, 7:10] == pytest.approx([0.52, -0.01, 0.3])
    assert robot.pose.quaternion == pytest.approx([1, 0, 0, 0])
    for _ in range(30):
        seen = env.step(act(1, 0, -1, 0, 0, 0, 0))[0]
    assert seen["states"][0, 7:10] == pytest.approx([0.7, -0.01, 0.05])
    assert seen["main_images"].shape == (1, 4, 6, 3)
    assert seen["task_descriptions"].tolist() == ["pick the cube"]


def test_a_turn_is_limited_as_a_whole(franky):
    env = make(max_rotation=0.1)
    env.reset(seed=0)
    env.step(act(0, 0, 0, 0, 0, 1, 0))
    # From a half turn around x, 0.1 around the base's z.
    half = 0.05
    assert np.abs(LAST["robot"].pose.quaternion) == pytest.approx([np.cos(half), np.sin(half), 0, 0], abs=1e-6)
    LAST["robot"].pose = Affine([0.5, 0, 0.3], [0, 0, 0, 1.0])
    env.step(act(0, 0, 0, 1, 1, 1, 0))
    assert 2 * np.arccos(LAST["robot"].pose.quaternion[3]) == pytest.approx(0.1, abs=1e-6)


def test_the_gripper_is_commanded_only_when_it_changes(franky):
    env = make()
    env.reset(seed=0)
    for grip in (0, 1, 1, 0.2, -1, -1, 1):
        env.step(act(0, 0, 0, 0, 0, 0, grip))
    assert LAST["gripper"].log == ["open", "grasp", "open"]


def test_the_operator_stops_the_arm_and_the_next_reset_waits_for_him(franky):
    env = make()
    env.reset(seed=0)
    LAST["human"].stop = True
    LAST["robot"].log.clear()
    _, _, terminated, truncated, infos = env.step(act(1, 0, 0, 0, 0, 0, 0))
    assert (terminated[0], truncated[0], infos["_episode"][0]) == (False, True, True)
    assert LAST["robot"].log == ["CartesianStopMotion"]
    with pytest.raises(EnvMisuse, match="have ended"):
        env.step(act(1, 0, 0, 0, 0, 0, 0))
    env.reset(seed=1)
    assert LAST["human"].asked == 2
    env.step(act(1, 0, 0, 0, 0, 0, 0))
    assert LAST["robot"].log[-1] == "CartesianMotion"


def test_a_joint_near_its_limit_stops_the_arm(franky):
    env = make()
    env.reset(seed=0)
    LAST["robot"].joints[3] = -0.18
    LAST["robot"].log.clear()
    truncated = env.step(act(1, 0, 0, 0, 0, 0, 0))[3]
    assert truncated[0]
    assert LAST["robot"].log == ["CartesianStopMotion"]


def test_success_ends_an_episode(franky):
    env = make()
    env.reset(seed=0)
    LAST["human"].done = True
    _, reward, terminated, truncated, infos = env.step(act(0, 0, 0, 0, 0, 0, 0))
    assert (reward[0], terminated[0], truncated[0], infos["episode"]["success_once"][0]) == (1, True, False, True)


def test_a_scripted_home(franky):
    home = (0.1, -0.3, 0.0, -2.1, 0.0, 1.7, 0.7)
    env = make(home=home)
    seen, _ = env.reset(seed=0)
    assert seen["states"][0, :7] == pytest.approx(home)
    assert (LAST["robot"].log, LAST["robot"].joined) == (["CartesianStopMotion", "JointMotion"], 1)


def test_a_home_that_is_not_reached(franky):
    env = make(home=(0.1, -0.3, 0.0, -2.1, 0.0, 1.7, 0.7), ready_seconds=0.01)
    LAST["robot"].stuck = True
    with pytest.raises(DeadlineExceeded, match="didn't reach home: not within"):
        env.reset(seed=0)
    assert LAST["robot"].log[-1] == "JointStopMotion"


def test_nobody_there(franky):
    env = make()
    LAST["human"].absent = True
    with pytest.raises(DeadlineExceeded, match="nobody confirmed within 600 s"):
        env.reset(seed=0)
    assert "CartesianMotion" not in LAST["robot"].log


def test_what_a_real_arm_cannot_keep_is_declared(franky):
    env = make()
    assert set(env.metadata["waived"]) == {"pure_reset", "seeds", "instances", "partial_reset"}
    with pytest.raises(ConfigError, match="no numbered initial states"):
        env.reset(options={"init_id": 3})
    env.close()
    assert LAST["robot"].log == ["CartesianStopMotion"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamics": 0.9}, r"env\.dynamics: must be more than 0 and at most 0\.3, found 0\.9"),
        ({"max_translation": 0.0}, r"env\.max_translation"),
        ({"workspace_low": (0.8, 0.0, 0.0)}, r"env\.workspace_low: expected 3 numbers, each below that of workspace_high"),
        ({"joint_low": (0.0,) * 6}, r"env\.joint_low: expected 7 numbers"),
        ({"home": (0.0,) * 7}, r"env\.home: expected seven angles within the joint limits"),
        ({"home": (0.0,) * 6}, r"env\.home: expected seven angles"),
        ({"operator": "people:Nobody"}, r"env\.operator: 'people:Nobody' can't be made"),
    ],
)
def test_wrong_configurations(franky, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)
    assert "robot" not in LAST


def test_one_arm_is_one_environment(franky):
    with pytest.raises(ConfigError, match="there is one arm, found num_envs=2"):
        config().make(2, max_episode_steps=5, ignore_terminations=False, render=False)


def test_without_the_driver():
    if importlib.util.find_spec("franky") is not None:
        pytest.skip("franky is installed")
    with pytest.raises(MissingExtra, match="'franky-control'"):
        config().check("env")


@pytest.mark.slow
def test_a_simulated_arm_behind_the_real_driver(monkeypatch):
    """In an interpreter of its own: uv pip install franky-control franky-sim gymnasium pytest pytest-timeout."""
    pytest.importorskip("franky")
    server = pytest.importorskip("franky_sim").SimulationServer
    simulator = pytest.importorskip("franky_sim.mujoco_simulator").MujocoSimulator
    people = types.ModuleType("people")
    people.Human = Human
    monkeypatch.setitem(sys.modules, "people", people)
    home = (0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785)
    with simulator() as world:
        arm = world.add_robot()
        with server(world) as running:
            running.run_async()
            env = make(robot_ip=arm.hostname, realtime=False, home=home, dynamics=0.3, step_seconds=0.2, ready_seconds=60.0)
            seen, _ = env.reset(seed=0)
            assert seen["states"][0, :7] == pytest.approx(home, abs=0.03)
            start = seen["states"][0, 7:10]
            for _ in range(10):
                seen = env.step(act(0, 0, -1, 0, 0, 0, -1))[0]
            moved = seen["states"][0, 7:10] - start
            assert moved[2] < -0.05
            assert np.abs(moved[:2]).max() < 0.01
            assert seen["states"][0, 14] < 0.03
            LAST["human"].stop = True
            truncated = env.step(act(0, 0, -1, 0, 0, 0, 0))[3]
            assert truncated[0]
            seen, _ = env.reset(seed=0)
            assert seen["states"][0, :7] == pytest.approx(home, abs=0.03)
            env.close()
