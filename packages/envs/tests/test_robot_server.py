"""A simulated Franka behind its controller, over a socket: what a client sees, and what becomes of the arm without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.realworld import ControllerClient, ControllerConfig, LinkFaults, RealWorld, RobotFault, Serving, session
from rlinf.envs.realworld.commands import robot

pytest.importorskip("mujoco")

# The wire format, by hand: what a client in another language would write.
DRIVER = """
import json, socket, struct, sys
host, port = sys.argv[1].split(":")
sock = socket.create_connection((host, int(port)))
while True:
    text = json.dumps({"op": "act", "kind": "joint_velocity", "values": [0.4, 0, 0, 0, 0, 0, 0], "seconds": 0.1}).encode()
    sock.sendall(struct.pack("<IQ", len(text), 0) + text)
    size = struct.unpack("<IQ", sock.recv(12, socket.MSG_WAITALL))[0]
    json.loads(sock.recv(size, socket.MSG_WAITALL))
"""
STILL = 0.02


@pytest.fixture
def serve():
    servers, clients = [], []

    def start(clock="stepped", **given):
        servers.append(Serving(robot="simulated_franka", clock=clock, **given).built())
        servers[-1].start()
        clients.append(ControllerClient(servers[-1].address))
        return servers[-1], clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.close()


def until(condition, seconds=30.0):
    """Waits for it; for long, as machines may be busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_arm_stands_still_within_200_ms_of_a_client_that_is_killed_or_frozen(serve, how):
    server, watching = serve(clock="real")
    driver = subprocess.Popen([sys.executable, "-S", "-c", DRIVER, server.address])
    try:
        until(lambda: abs(watching.state().velocity[0]) > 0.2)
        os.kill(driver.pid, how)
        until(lambda: watching.state().stop_s > 0 and np.abs(watching.state().velocity).max() < STILL)
    finally:
        driver.kill()
        driver.wait()
    until(lambda: server.driver is None)  # its last command has been read, too
    # In periods of the arm, from the last command that arrived; a period that a busy machine misses moves nothing.
    assert 0 < watching.state().stop_s <= 0.2
    assert watching.state().holding
    if how == signal.SIGSTOP:
        assert watching.state().counts["watchdog"] >= 1
    # Whoever comes next may drive it.
    assert watching.act("joint_velocity", [0.0] * 7, seconds=0.05).verdict == ""


def test_one_client_drives_and_everybody_may_stop(serve, monkeypatch):
    monkeypatch.setattr(session, "_LEASE_S", 600.0)
    server, mine = serve()
    other = ControllerClient(server.address)
    mine.act("joint_velocity", [0.2] + [0.0] * 6, seconds=0.1)
    with pytest.raises(RobotFault, match="another client commands the arm"):
        other.act("joint_velocity", [0.2] + [0.0] * 6, seconds=0.1)
    assert robot(["stop", server.address]) == 0
    state = mine.act("joint_velocity", [0.2] + [0.0] * 6, seconds=0.1)
    assert state.stopped == "rlinf robot stop"
    assert state.verdict.startswith("refused")
    assert np.abs(state.velocity).max() < STILL
    assert robot(["recover", server.address]) == 0
    assert mine.act("joint_velocity", [0.2] + [0.0] * 6, seconds=0.1).velocity[0] == pytest.approx(0.2, abs=0.02)
    # A client that leaves an arm in motion leaves one that brakes.
    mine.close()
    until(lambda: other.state().holding)
    assert np.abs(other.state().velocity).max() < STILL
    assert other.act("joint_velocity", [0.1] + [0.0] * 6, seconds=0.1).velocity[0] == pytest.approx(0.1, abs=0.02)
    other.close()


def test_an_arm_that_is_unplugged_ends_the_episode_and_goes_on_when_it_is_plugged_in(serve):
    server, watching = serve()
    config = RealWorld(controllers=(server.address,), reset="home", patience_s=0.3)
    env = config.make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    env.reset(seed=1)
    env.step(np.zeros((1, 3), np.float32))
    watching.unplug()
    *_, truncated, _ = env.step(np.zeros((1, 3), np.float32))
    assert truncated.all()
    assert watching.state().stopped == "fault: the arm doesn't answer"
    with pytest.raises(RobotFault, match=r"no episode can begin: the arm doesn't answer; waited for 0\.3 s"):
        env.reset(seed=2)
    watching.unplug(False)
    env.reset(seed=2)
    *_, truncated, _ = env.step(np.zeros((1, 3), np.float32))
    assert not truncated.any()
    assert env.unwrapped.take_counts()["robot/stops"] >= 1
    env.close()


def test_a_simulated_arm_whose_process_is_killed_is_told_in_a_line():
    env = RealWorld(patience_s=60.0).make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    try:
        env.reset(seed=1)
        (task,) = env.unwrapped._robots
        os.kill(task._process._child.pid, signal.SIGKILL)
        began = time.monotonic()
        for play in (lambda: env.step(np.zeros((1, 3), np.float32)), lambda: task.reset(seed=2)):
            with pytest.raises(RobotFault) as told:
                play()
            text = "robot: its simulated arm was killed by SIGKILL; its log is empty. Resume the run, which starts another one."
            assert str(told.value) == text
        assert time.monotonic() - began < 30, "nobody can plug it in again"
    finally:
        env.close()


def test_a_way_to_the_controller_that_is_cut_stops_the_arm_and_says_how_to_go_on(serve):
    server, watching = serve()
    env = RealWorld(controllers=(server.address,), reset="home", patience_s=60.0).make(
        1, max_episode_steps=None, ignore_terminations=False, render=False
    )
    env.reset(seed=1)
    (task,) = env.unwrapped._robots
    env.step(np.ones((1, 3), np.float32))
    task._client._connection._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(RobotFault, match=r"its controller at 127\.0\.0\.1:\d+ is gone \(.*start `rlinf robot serve` again"):
        env.step(np.ones((1, 3), np.float32))
    until(lambda: watching.state().holding)
    assert np.abs(watching.state().velocity).max() < STILL
    assert 0 < watching.state().stop_s <= 0.2
    env.close()


@pytest.mark.parametrize("rate", [300, 1000])
def test_a_simulated_arm_keeps_time_whatever_the_period_of_its_controller(serve, rate):
    """Its physics steps in 2 ms."""
    _, client = serve(controller=ControllerConfig(rate_hz=rate))
    for _ in range(10):
        state = client.act("joint_velocity", [0.4] + [0.0] * 6, seconds=0.1)
    assert state.velocity[0] == pytest.approx(0.4, abs=0.02)
    # But for the moment in which it speeds up.
    assert state.joints[0] - client.info.home[0] == pytest.approx(0.4, abs=0.02)


def test_a_link_that_delays_and_one_that_loses_everything(serve):
    _, client = serve(link=LinkFaults(latency_s=0.05))
    first = client.act("joint_velocity", [0.4] + [0.0] * 6, seconds=0.04)
    assert abs(first.velocity[0]) < 1e-9
    assert client.act("joint_velocity", [0.4] + [0.0] * 6, seconds=0.1).velocity[0] > 0.1
    _, losing = serve(link=LinkFaults(drop=1.0))
    state = losing.act("joint_velocity", [0.4] + [0.0] * 6, seconds=0.1)
    assert abs(state.velocity[0]) < 1e-9
    assert state.counts["dropped"] == 1
    # Some get through, and the watchdog acts on what does not.
    _, poor = serve(link=LinkFaults(drop=0.7))
    for _ in range(20):
        state = poor.act("joint_velocity", [0.4] + [0.0] * 6, seconds=0.1)
    assert state.counts["watchdog"] > 0
    assert state.joints[0] > 0.05


def test_a_peg_that_is_pressed_on_the_table_stops_the_arm(serve):
    _, client = serve()
    # Its workspace ends above the table; a table that is higher is met.
    client.place(client.info.home, {"socket": [0.5252 + 0.024, 0.0, 0.05]})
    for _ in range(40):
        state = client.act("tool_motion", [0, 0, -0.02, 0, 0, 0], seconds=0.1)
        if state.stopped:
            break
    assert state.stopped.startswith("force: ")
    assert state.counts["force"] == 1


def test_messages_that_make_no_sense_are_answered_and_harm_nobody(serve):
    server, client = serve()
    for request, why in (
        ({"op": "dance"}, "there is no op 'dance'"),
        ({"op": "act"}, "'act' can't be read (KeyError"),
        ({"op": "act", "kind": [], "values": {}, "seconds": 1}, "can't be read"),
        ({"op": "act", "kind": "hold", "values": [], "seconds": float("nan")}, "0 < seconds"),
        ({"op": "human", "motion": [1.0]}, "a motion of 6 numbers"),
        ({"op": "place", "joints": [0.0]}, "7 joint angles"),
        ({"op": "place", "joints": [0.0] * 7, "scene": {"cake": [0, 0, 0]}}, "no object 'cake'"),
    ):
        with pytest.raises(RobotFault) as error:
            client._ask(request)
        assert why in str(error.value)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 4)
        assert raw.recv(100) == b""
    assert client.act("joint_velocity", [0.1] + [0.0] * 6, seconds=0.1).verdict == ""


def test_the_environment_keeps_the_contract(serve):
    def factory():
        robots = [serve()[0].address for _ in range(2)]
        return RealWorld(controllers=tuple(robots)).make(2, max_episode_steps=6, ignore_terminations=False, render=False)

    passed = EnvContract(factory=factory, steps=4, act=lambda env: env.unwrapped.expert_actions()).run()
    assert "a reset depends on its arguments alone, and a replayed sequence is the same to the bit" in passed


@pytest.mark.parametrize("task", ["reach", "peg"])
def test_an_expert_solves_the_tasks_within_the_limits(serve, task):
    env = RealWorld(task=task, controllers=(serve()[0].address,)).make(
        1, max_episode_steps=None, ignore_terminations=False, render=False
    )
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, _, over, cut, infos = env.step(env.unwrapped.expert_actions())
            ended = bool(over[0] or cut[0])
        assert infos["success"].all()
    counts = env.unwrapped.take_counts()
    assert counts["robot/force"] == counts["robot/stops"] == counts["robot/refused"] == 0
    # What was taken is counted once.
    assert not any(env.unwrapped.take_counts().values())
    env.close()


def test_a_person_says_success_and_failure_and_acts(serve, monkeypatch):
    monkeypatch.setattr(session, "_ACTS_S", 600.0)
    server, console = serve()
    config = RealWorld(controllers=(server.address,), success="key", grips=True)
    env = config.make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    env.reset(seed=0)
    still = np.zeros((1, 4), np.float32)
    assert np.isnan(env.unwrapped.human_actions()).all()
    assert not env.step(still)[4]["success"].any()
    console.human([0.1, 0, 0, 0, 0, 0])
    env.step(still)
    # 0.1 m/s for 0.1 s of 0.025 m.
    np.testing.assert_allclose(env.unwrapped.human_actions()[0, :3], [0.4, 0, 0])
    console.human(None, ["success"])
    _, reward, over, _, infos = env.step(still)
    assert infos["success"].all()
    assert over.all()
    assert reward[0] == 1.0
    env.reset(seed=0)
    console.human(None, ["failure"])
    _, _, over, cut, infos = env.step(still)
    assert cut.all()
    assert not over.any()
    env.close()


def test_a_classifier_can_say_what_success_is(serve):
    config = RealWorld(controllers=(serve()[0].address,), success=f"{__name__}:always")
    env = config.make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    env.reset(seed=0)
    assert env.step(np.zeros((1, 3), np.float32))[4]["success"].all()
    env.close()
    with pytest.raises(ConfigError, match="nothing"):
        RealWorld(controllers=config.controllers, success=f"{__name__}:nothing").make(
            1, max_episode_steps=None, ignore_terminations=False, render=False
        )


def always():
    """What makes a classifier."""
    return lambda observation: observation["states"].shape == (23,)


def test_what_can_not_be_is_refused_before_anything_moves(serve):
    for wrong, key in (
        ({"controllers": ("here",)}, "env.controllers"),
        ({"success": "smile"}, "env.success"),
        ({"step_seconds": 0.5}, "env.step_seconds"),
        ({"max_translation": 0.0}, "env.max_translation"),
    ):
        with pytest.raises(ConfigError) as error:
            RealWorld(**wrong).check("env")
        assert error.value.place == key
    server, _ = serve()
    with pytest.raises(ConfigError, match="2 environments, but 1 controllers"):
        RealWorld(controllers=(server.address,)).make(2, max_episode_steps=None, ignore_terminations=False, render=False)
    with pytest.raises(RobotFault, match="no controller answers"):
        ControllerClient("127.0.0.1:9", connect_s=0.1)
    with pytest.raises(ConfigError, match="longer than the controller's watchdog_s"):
        RealWorld(controllers=(server.address,), step_seconds=0.3).make(
            1, max_episode_steps=None, ignore_terminations=False, render=False
        )


def test_the_format_of_a_message_is_what_a_client_in_another_language_writes(serve):
    server, _ = serve()
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as raw:
        text = json.dumps({"op": "hello"}).encode()
        raw.sendall(struct.pack("<IQ", len(text), 0) + text)
        size, payload = struct.unpack("<IQ", raw.recv(12, socket.MSG_WAITALL))
        answer = json.loads(raw.recv(size, socket.MSG_WAITALL))
    assert payload == 0
    assert answer["name"] == "franka"
    assert answer["simulated"]


def test_two_environments_take_turns_at_one_arm(serve):
    address = serve()[0].address
    training, evaluated = (
        RealWorld(controllers=(address,)).make(1, max_episode_steps=None, ignore_terminations=False, render=False) for _ in range(2)
    )
    for env in (training, evaluated, training):
        env.reset(seed=1)
        assert not env.step(np.zeros((1, 3), np.float32))[3].any()
    training.close()
    evaluated.close()


def test_rlinf_robot_serves_whatever_the_order_of_its_words():
    script = "import sys; from rlinf.core.commands import main; sys.exit(main())"
    words = ["robot", "serve", "simulated_franka", "--port", "0", "clock=stepped", "controller.rate_hz=50"]
    served = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True)
    try:
        line = served.stdout.readline()
        assert "50 Hz" in line
        client = ControllerClient(line.split(" at ")[1].split(",")[0])
        assert client.info.clock == "stepped"
        client.close()
    finally:
        served.terminate()
        assert served.wait(30) == 0


@pytest.mark.parametrize("clock", ["stepped", "real"])
def test_a_closed_server_leaves_no_thread(serve, clock):
    """Not even for a client that is still there: one that computes in MuJoCo when Python ends makes it crash."""
    before = set(threading.enumerate())
    server, client = serve(clock=clock)
    client.act("tool_motion", np.zeros(6), seconds=0.02)
    server.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("robot")]
    with pytest.raises(RLinfError):
        client.state()
