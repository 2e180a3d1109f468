"""A controller of an arm without mass: how it ends, what it lets go of, and what does not hold it up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from point_arm import PointArm

from rlinf.core.errors import ConfigError, DeadlineExceeded
from rlinf.core.process import Connection, ConnectionLost
from rlinf.envs.realworld import PANDA, Controller, ControllerClient, ControllerConfig, RealWorld, RobotFault, Serving
from rlinf.envs.realworld.commands import robot
from rlinf.envs.realworld.robot import ControllerLost
from rlinf.envs.realworld.server import ControllerServer

INFO = {
    **dict.fromkeys(("workspace_low", "workspace_high"), (0.0, 0.0, 0.0)),
    **dict.fromkeys(("joints", "rate_hz", "watchdog_s", "tool_speed", "force"), 7),
    **{"name": "franka", "clock": "real", "simulated": False},
}


class EndedArm(PointArm):
    """Its process is told to end within a period."""

    def brake(self):
        super().brake()
        if self.brakes == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a robot is served by."""

    made: ClassVar[list[EndedArm]] = []

    def check(self, place):
        """Nothing is needed."""

    def connect(self):
        self.made.append(EndedArm())
        return self.made[-1]


def test_an_arm_whose_controller_is_told_to_end_brakes_before_anybody_is_waited_for(monkeypatch):
    closed, close = [], ControllerServer.close

    def noted(server):
        closed.append(server.controller.robot.closed)
        close(server)

    monkeypatch.setattr(ControllerServer, "close", noted)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert robot(["serve", f"{__name__}:Ended", "--port", "0"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert closed == [True]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A robot that may answer nothing."""

    made: ClassVar[list[PointArm]] = []
    answers: bool

    def check(self, place):
        """Nothing is needed."""

    def connect(self):
        self.made.append(PointArm())
        self.made[-1].answers = self.answers
        return self.made[-1]


def test_a_robot_that_can_not_be_served_is_let_go():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="nothing can listen at"):
            Serving(robot=f"{__name__}:Silent", params={"answers": True}, port=port).built()
    with pytest.raises(RobotFault, match="the arm doesn't answer"):
        Serving(robot=f"{__name__}:Silent", params={"answers": False}).built()
    assert [arm.closed for arm in Silent.made] == [True, True]


def test_an_environment_that_refuses_a_robot_lets_go_of_its_controller():
    server = ControllerServer(Controller(PointArm(), ControllerConfig()))
    server.start()
    # The error is kept, and with it what its frames know.
    with pytest.raises(ConfigError, match="this would move a real arm") as told:
        RealWorld(controllers=(server.address,)).make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    (client,) = server._clients.values()
    client.join(10)
    assert not client.is_alive(), told.value
    server.close()


def test_an_answer_that_comes_late_is_not_taken_for_that_of_the_next_request():
    arm = Controller(PointArm(), ControllerConfig())
    state = {**arm.state(), "time": 0.0, "verdict": "", "human": None, "keys": []}
    late = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection = Connection(listener.accept()[0])
            connection.wait()
            connection.send({**INFO, "home": PANDA.home})
            connection.wait()
            late.wait(30)
            with contextlib.suppress(ConnectionLost):
                connection.send({**state, "verdict": "late"})
                connection.wait()
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = ControllerClient(f"127.0.0.1:{listener.getsockname()[1]}", deadline_s=30.0)
        client._deadline_s = 0.05
        with pytest.raises(DeadlineExceeded, match=r"has not answered 'act' within 0\.15 s"):
            client.act("hold", [], seconds=0.1)
        late.set()
        client._deadline_s = 30.0
        with pytest.raises(ControllerLost):
            client.state()
        client.close()
        thread.join(30)


class Watched(PointArm):
    """Its camera takes its time: until the arm has been driven on."""

    camera = 2

    def __init__(self):
        super().__init__()
        self.looks, self.moved = threading.Event(), threading.Event()
        self.held_up = False

    def brake(self):
        super().brake()
        if self.looks.is_set():
            self.moved.set()

    def frame(self):
        self.looks.set()
        self.held_up = not self.moved.wait(5)
        return np.zeros((2, 2, 3), np.uint8)


def test_a_slow_camera_does_not_hold_up_the_arm():
    arm = Watched()
    server = ControllerServer(Controller(arm, ControllerConfig()))
    server.start()
    client = ControllerClient(server.address, deadline_s=30.0)
    assert client.frame().shape == (2, 2, 3)
    assert not arm.held_up
    client.close()
    server.close()
