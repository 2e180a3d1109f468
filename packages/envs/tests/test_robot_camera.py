"""What the simulated arm's camera sees, over the socket; who judges its frames; and a SpaceMouse, by the reports that one sends."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.realworld import ControllerClient, RealWorld, RobotFault, Serving
from rlinf.envs.realworld.console import SPEED, SpaceMouse
from rlinf.envs.realworld.realworld import Simulation

pytest.importorskip("mujoco")
from rlinf.envs.realworld._realworld import SimulatedController
from rlinf.envs.rendering.mujoco import can_render

drawn = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: neither EGL nor OSMesa works")
OPTIONS = {"max_episode_steps": None, "ignore_terminations": False, "render": False}


def red(frame):
    """`[H, W]`, the pixels of the goal."""
    return (frame[..., 0].astype(int) - frame[..., 1:].max(-1)) > 60


class LooksAtGoal:
    """Success is where the goal is seen in the left half; stands for a classifier."""

    def __init__(self, edge: int):
        self.edge = edge

    def __call__(self, observation):
        return np.argwhere(red(observation["main_images"]))[:, 1].mean() < self.edge


@drawn
def test_two_clients_see_where_the_goal_is_and_the_arm_that_moved():
    # In a process of its own: OpenGL's drivers and compilers of other libraries don't go together in one.
    server = SimulatedController(Simulation(params={"camera": 48}))
    arm, watching = ControllerClient(server.address), ControllerClient(server.address)
    places = []
    for side in (-0.2, 0.2):
        arm.place(arm.info.home, {"goal": [0.5, side, 0.2]})
        frame = arm.frame()
        assert (frame.shape, frame.dtype, arm.info.camera) == ((48, 48, 3), np.uint8, 48)
        np.testing.assert_array_equal(watching.frame(), frame)
        places.append(np.argwhere(red(frame))[:, 1].mean())
    # The camera looks towards the base: the arm's left is on its right.
    assert places[0] < 20 < 28 < places[1]
    before = arm.frame()
    arm.act("tool_motion", [0.05, 0.05, 0, 0, 0, 0], seconds=0.1)
    assert (arm.frame() != before).any()
    with pytest.raises(RobotFault, match=r"there is no object 'cup' to place"):
        arm.place(arm.info.home, {"cup": [0.5, 0, 0]})
    for each in (arm, watching, server):
        each.close()


@drawn
def test_frames_are_observed_and_a_judge_of_them_says_what_is_success():
    config = RealWorld(camera=32, success=f"{__name__}:LooksAtGoal", success_params={"edge": 16})
    assert config.observed == ("states", "main_images")
    env = config.make(1, **OPTIONS)
    assert env.single_observation_space["main_images"].shape == (32, 32, 3)
    told = []
    for seed in range(6):
        observation, _ = env.reset(seed=[seed])
        observation, reward, *_, infos = env.step(np.zeros((1, 3), np.float32))
        left = np.argwhere(red(observation["main_images"][0]))[:, 1].mean() < 16
        assert infos["success"][0] == left == (reward[0] == 1)
        told.append(bool(left))
    assert set(told) == {True, False}
    env.close()


@drawn
def test_an_arm_with_a_camera_keeps_the_contract():
    def factory():
        return RealWorld(camera=16).make(2, **{**OPTIONS, "max_episode_steps": 4})

    passed = EnvContract(factory=factory, steps=2, act=lambda env: env.unwrapped.expert_actions()).run()
    assert "a reset depends on its arguments alone, and a replayed sequence is the same to the bit" in passed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"camera": 5000}, r"env\.simulation\.camera: expected .* 1024"),
        ({"success_params": {"folder": "x"}}, r"env\.success_params: 'task' is given nothing"),
        ({"success": "nowhere:made"}, r"env\.success: 'nowhere:made' can't be made"),
        ({"success": f"{__name__}:LooksAtGoal"}, r"env\.success: .* can't be made: .*edge"),
    ],
)
def test_what_can_not_be_seen_or_judged_is_refused(given, said):
    # Before any process is started.
    with pytest.raises(ConfigError, match=said):
        RealWorld(**given).check("env")
    with pytest.raises(ConfigError, match=said):
        RealWorld(**given).make(1, **OPTIONS)


def test_a_robot_without_the_camera_that_is_asked_for_is_refused():
    server = Serving(robot="simulated_franka", clock="stepped").built()
    server.start()
    with pytest.raises(ConfigError, match=r"env\.camera: expected a camera of 32 pixels, and that of '.*' has none"):
        RealWorld(controllers=(server.address,), camera=32).make(1, **OPTIONS)
    client = ControllerClient(server.address)
    with pytest.raises(RobotFault, match="it has no camera"):
        client.frame()
    client.close()
    server.close()


class Device:
    """A `hid.device` that sends these reports."""

    def __init__(self, *reports):
        self.reports, self.opened = list(reports), None

    def open(self, *ids):
        self.opened = ids

    def set_nonblocking(self, on):
        assert on

    def read(self, size):
        return list(self.reports.pop(0)[:size]) if self.reports else []


def report(kind, *axes):
    return bytes([kind]) + b"".join(int(axis).to_bytes(2, "little", signed=True) for axis in axes)


def test_reports_of_a_space_mouse_move_the_tool():
    """As a SpaceNavigator sends them: 1 is of translation, 2 of rotation, 3 of buttons."""
    device = Device(report(1, 0, -350, 0), report(3, 1))
    mouse = SpaceMouse(device)
    assert mouse.motion() == pytest.approx((SPEED, 0, 0, 0, 0, 0)), "pushed away from the person, from the base"
    assert mouse.motion() == pytest.approx((SPEED, 0, 0, 0, 0, 0)), "it sends nothing while it is held still"
    device.reports += [report(1, 0, 0, 0), report(2, 0, 0, 700)]
    motion = mouse.motion()
    assert motion[:5] == pytest.approx((0, 0, 0, 0, 0))
    assert motion[5] < 0, "a number beyond the range counts as its end"
    device.reports.append(report(2, 0, 0, 5))
    assert mouse.motion() is None, "nobody touches it"
    device.reports.append(report(1, 175, 0, 0, 0, 0, 0))
    assert mouse.motion() == pytest.approx((0, -SPEED / 2, 0, 0, 0, 0)), "a long report has both"


def test_the_first_space_mouse_is_opened_where_hidapi_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "hid", None)
    device = Device(report(1, 0, 0, -350))
    found = SimpleNamespace(enumerate=lambda vendor, product: [{}] if product == 0xC635 else [], device=lambda: device)
    monkeypatch.setattr("rlinf.envs.realworld.console.is_there", lambda name: True)
    monkeypatch.setitem(sys.modules, "hid", found)
    mouse = SpaceMouse.found()
    assert mouse is not None
    assert device.opened == (0x256F, 0xC635)
    assert mouse.motion() == pytest.approx((0, 0, SPEED, 0, 0, 0)), "lifted"
    monkeypatch.setattr("rlinf.envs.realworld.console.is_there", lambda name: False)
    assert SpaceMouse.found() is None
