"""What happens when a simulator's process ends, hangs, is stopped, or loses its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from remote_envs import Numbers

from rlinf.envs.remote import Deadlines, Remote, SimulatorDied

HERE = str(Path(__file__).parent)
ACTION = np.full((2, 2), 0.5, np.float32)
FATAL = np.full((2, 2), 0.25, np.float32)


def make(*, restarts=3, deadlines=None, limit=9, **params):
    config = Remote(
        python=sys.executable,
        env="remote_envs:Numbers",
        params=params,
        paths=(HERE,),
        restarts=restarts,
        deadlines=deadlines or Deadlines(),
    )
    return config.make(2, max_episode_steps=limit, ignore_terminations=False, render=False)


def here(**params):
    return Numbers(**params).make(2, max_episode_steps=9, ignore_terminations=False, render=False)


def kill(env, number=signal.SIGKILL):
    pid = env.unwrapped.processes[0]
    os.kill(pid, number)
    return pid


def say(answer):
    observation, *flags, infos = answer
    return [array.tobytes() for array in (*observation.values(), *flags, *infos["episode"].values())]


def test_a_killed_simulator_goes_on_where_it_was():
    env, local = make(), here()
    mask = np.array([True, False])
    for e in (env, local):
        e.reset(seed=4, options={"task": [1, 0]})
    for step in range(24):
        if step in (2, 7, 15):
            kill(env)
        if step in (3, 7):  # the episodes begin at different times
            for e in (env, local):
                e.reset(seed=90 + step, options={"reset_mask": mask})
        answer, expected = env.step(ACTION), local.step(ACTION)
        assert say(answer) == say(expected), step
        done = answer[2] | answer[3]
        if done.any():
            first, _ = env.reset(seed=step, options={"reset_mask": done})
            second, _ = local.reset(seed=step, options={"reset_mask": done})
            assert all(np.array_equal(first[key], second[key]) for key in first)
    assert answer[4]["restarts"] == 3
    assert "restarts" not in expected[4]
    env.close()


def test_a_stopped_simulator_is_replaced_and_gone():
    env, local = make(deadlines=Deadlines(step=5.0)), here()
    for e in (env, local):
        e.reset(seed=4)
    assert say(env.step(ACTION)) == say(local.step(ACTION))
    pid = kill(env, signal.SIGSTOP)
    answer = env.step(ACTION)
    assert say(answer) == say(local.step(ACTION))
    assert answer[4]["restarts"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    env.close()


def test_an_error_says_how_it_ended_and_the_end_of_its_log():
    env = make(fails="exits", restarts=1)
    env.reset(seed=0)
    with pytest.raises(SimulatorDied) as caught:
        env.step(FATAL)
    text = str(caught.value)
    assert "simulator 0 (environments 0 to 1) exited with status 3 during step" in text
    assert "the licence has expired" in text
    assert "Restarts before: 1. See why it fails, or raise the environment's 'restarts'." in text
    env.close()
    env = make(fails="hangs", restarts=0, deadlines=Deadlines(step=0.5))
    env.reset(seed=0)
    with pytest.raises(SimulatorDied, match=r"didn't answer within 0\.5 s and was killed during step"):
        env.step(FATAL)
    env.close()


def test_a_failure_at_the_start_is_not_repeated(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no such library >&2\nkill -TERM $$\n")
    script.chmod(0o755)
    with pytest.raises(SimulatorDied, match=r"was killed by SIGTERM during hello.*\n  no such library"):
        Remote(python=str(script), env="tabletop").make(2, max_episode_steps=3, ignore_terminations=False, render=False)


def test_an_interpreter_without_numpy_is_told_the_command(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    with pytest.raises(SimulatorDied, match=rf"{python} lacks numpy: {python} -m pip install numpy 'gymnasium>=1\.1'"):
        Remote(python=python, env="tabletop").make(2, max_episode_steps=3, ignore_terminations=False, render=False)


def test_what_cannot_be_repeated_is_truncated():
    env = make(impure=True)
    env.reset(seed=0)
    env.step(ACTION)
    before, *_, known = env.step(ACTION)
    kill(env)
    observation, reward, terminated, truncated, infos = env.step(ACTION)
    assert truncated.all()
    assert not terminated.any()
    assert not reward.any()
    assert all(np.array_equal(observation[key], before[key]) for key in before)
    assert infos["_episode"].all()
    assert infos["episode"]["episode_len"].tolist() == [2, 2]
    assert infos["episode"]["return"].tolist() == known["episode"]["return"].tolist()
    env.reset(seed=0, options={"reset_mask": truncated})
    assert not env.step(ACTION)[3].any()
    kill(env)
    mask = np.array([True, False])
    observation, _ = env.reset(seed=0, options={"reset_mask": mask})
    _, reward, _, truncated, infos = env.step(ACTION)
    assert truncated.tolist() == [False, True]
    assert infos["_episode"].tolist() == [False, True]
    assert infos["restarts"] == 2
    env.close()


def test_what_says_that_it_can_be_repeated_but_cannot_is_truncated(caplog):
    # It promises to be pure, as nothing is waived, and draws from the system's entropy.
    env = make(impure=True, promises=True)
    env.reset(seed=0)
    env.step(ACTION)
    kill(env)
    assert env.step(ACTION)[3].all()
    assert "came out differently" in caplog.text
    env.close()


PARENT = """
import sys, threading, time
from rlinf.envs.remote import Remote
made = []
def build():
    config = Remote(python=sys.executable, env="remote_envs:Numbers", params={"fails": "hangs"}, paths=(sys.argv[1],))
    made.append(config.make(2, max_episode_steps=9, ignore_terminations=False, render=False))
thread = threading.Thread(target=build)
thread.start()
thread.join()
env = made[0]
env.reset(seed=0)
print(env.unwrapped.processes[0], flush=True)
if sys.argv[2] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "ends", "stopped child"])
def test_no_orphans(how, tmp_path):
    command = [sys.executable, "-c", PARENT, HERE, "leave" if how == "ends" else "wait"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    child = int(parent.stdout.readline())  # it outlived the thread that started it
    if how == "stopped child":
        os.kill(child, signal.SIGSTOP)
    if how != "ends":
        parent.kill()
    parent.wait(60)
    parent.stdout.close()
    until = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def interrupted(env):
    # Only here: an interrupt that came before would be nobody's.
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    env.step(np.array([[0.125, 0.0], [0.0, 0.0]], np.float32))


def test_an_answer_that_nobody_waited_for_is_not_mistaken_for_another():
    env, local = make(slow=0.4), here()
    for e in (env, local):
        e.reset(seed=4)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(6):  # more often than there are places in memory
            with pytest.raises(KeyboardInterrupt):
                interrupted(env)
            env.reset(seed=5)
    finally:
        signal.signal(signal.SIGALRM, before)
    local.reset(seed=5)
    assert say(env.step(ACTION)) == say(local.step(ACTION))
    env.close()


def test_close_leaves_nothing():
    env = make()
    env.reset(seed=0)
    pid, folder = env.unwrapped.processes[0], env.unwrapped._folder.folder
    env.close()
    assert not is_alive(pid)
    assert not folder.exists()
