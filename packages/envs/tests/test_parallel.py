"""Environments in several processes: the contract, the same numbers as in one, partial batches, recycling."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from remote_envs import Numbers

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.errors import ConfigError, RLinfError, ShapeError, UnknownName
from rlinf.core.testing.env import EnvContract
from rlinf.envs.parallel import Parallel
from rlinf.envs.remote import Deadlines
from rlinf.envs.wrappers.contract import EnvMisuse

SETTINGS = {"max_episode_steps": 9, "ignore_terminations": False, "render": False}


def make(num_envs, *, processes=2, recycle=None, pin=False, **params):
    deadlines = Deadlines(close=2.0)
    config = Parallel(env="remote_envs:Numbers", params=params, processes=processes, recycle=recycle, pin=pin, deadlines=deadlines)
    return config.make(num_envs, **SETTINGS)


def here(num_envs, **params):
    return Numbers(**params).make(num_envs, **SETTINGS)


def play(env, steps):
    """Everything an environment says, with resets of ended episodes."""
    env.action_space.seed(0)
    told = list(env.reset(seed=7)[0].values())
    for step in range(steps):
        observation, *flags, infos = env.step(env.action_space.sample())
        told += [*observation.values(), *flags, infos["success"], infos["_episode"], *infos["episode"].values()]
        done = flags[1] | flags[2]
        if done.any():
            told += env.reset(seed=30 + step, options={"reset_mask": done})[0].values()
    return [array.tobytes() for array in told]


def test_contract():
    EnvContract(factory=lambda: make(3, ends=4.0), steps=4).run()


def test_the_same_numbers_as_in_one_process():
    env, local = make(5, ends=3.0), here(5, ends=3.0)
    assert env.unwrapped.shards == [range(2), range(2, 5)]
    assert len(set(env.unwrapped.processes)) == 2
    assert play(env, 30) == play(local, 30)
    env.close()


def test_chunks_stop_at_the_end_as_in_one_process():
    env, local = make(4), here(4)
    assert "unseen_steps" not in env.metadata, "other processes are not told what is seen"
    chunk = np.random.default_rng(0).uniform(-1, 1, (4, 8, 2)).astype(np.float32)
    steps = []
    for e in (env, local):
        e.reset(seed=1)
        chunk_step(e, chunk[:, :4])
        e.reset(seed=2, options={"reset_mask": np.array([True, False, False, True])})
        steps.append(chunk_step(e, chunk))
    assert steps[0].executed.sum(1).tolist() == steps[1].executed.sum(1).tolist() == [8, 5, 5, 8]
    assert np.array_equal(steps[0].rewards, steps[1].rewards)
    assert all(np.array_equal(array, steps[1].observations[key]) for key, array in steps[0].observations.items())
    env.close()


def test_recycling_changes_no_number():
    env, local = make(4, recycle=5, ends=3.0), here(4, ends=3.0)
    before = env.unwrapped.processes
    assert play(env, 25) == play(local, 25)
    assert env.unwrapped.recycled >= 2
    assert not set(before) & set(env.unwrapped.processes)
    assert env.step(env.action_space.sample())[4]["restarts"] == 0
    env.close()


def test_a_failure_touches_only_its_own_shard():
    env, local = make(4, ends=3.0), here(4, ends=3.0)
    for e in (env, local):
        e.reset(seed=1)
        e.step(e.action_space.sample() * 0)
    os.kill(env.unwrapped.processes[1], signal.SIGKILL)
    kept = env.unwrapped.processes[0]
    action = np.full((4, 2), 0.5, np.float32)
    answer, expected = env.step(action), local.step(action)
    assert all(np.array_equal(answer[0][key], expected[0][key]) for key in expected[0])
    assert np.array_equal(answer[1], expected[1])
    assert answer[4]["restarts"] == 1
    assert env.unwrapped.processes[0] == kept
    env.close()


def test_processes_are_pinned_and_count_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = make(2, processes=2, pin=True)
    cpus = sorted(os.sched_getaffinity(0))
    for index, pid in enumerate(env.unwrapped.processes):
        assert os.sched_getaffinity(pid) == {cpus[index % len(cpus)]}
        assert b"OMP_NUM_THREADS=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    env.close()


def test_a_partial_batch_does_not_wait_for_the_slow():
    env, local = make(3, processes=3, slow=30.0), here(3)
    for e in (env, local):
        e.reset(seed=2)
    action = np.full((3, 2), 0.5, np.float32)
    expected = local.step(action)
    action[1] = 0.125
    env.send(action, [0, 1, 2])
    started = time.monotonic()
    answer = env.recv(2)
    assert time.monotonic() - started < 25.0
    assert sorted(answer.env_ids.tolist()) == [0, 2]
    assert answer.stepped.all()
    for key, array in answer.observations.items():
        assert np.array_equal(array, expected[0][key][answer.env_ids])
    assert np.array_equal(answer.rewards, expected[1][answer.env_ids])
    assert answer.infos["episode"]["episode_len"].tolist() == [1, 1]
    with pytest.raises(EnvMisuse, match="environments 1 to 1 have not answered yet"):
        env.send(action[1:2], [1])
    with pytest.raises(EnvMisuse, match="1 environments have not answered yet"):
        env.step(action)
    env.close()


def test_send_and_recv_give_the_same_episodes_as_step():
    env, local = make(4, ends=3.0), here(4, ends=3.0)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, 4, 2)).astype(np.float32)
    env.reset(seed=2)
    local.reset(seed=2)
    expected = {i: [] for i in range(4)}
    for action in actions:
        _, reward, terminated, truncated, _ = local.step(action)
        for i in range(4):
            expected[i].append(reward[i])
        done = terminated | truncated
        if done.any():
            local.reset(seed=[len(expected[i]) for i in range(4)], options={"reset_mask": done})
    told = {i: [] for i in range(4)}
    for shard in env.shards:
        env.send(actions[0, shard], shard)
    while env.unwrapped.pending:
        answer = env.recv(1)
        ids = answer.env_ids
        for i, reward, stepped in zip(ids, answer.rewards, answer.stepped, strict=True):
            if stepped:
                told[i].append(reward)
        done = answer.terminated | answer.truncated
        count = len(told[ids[0]])
        if done.any():
            env.send_reset(ids[done], seed=[count] * 4)
        elif count < len(actions):
            env.send(actions[count, ids], ids)
    assert told == expected
    env.close()


def test_misuse_of_send_and_recv():
    env = make(4)
    zeros = np.zeros((2, 2), np.float32)
    with pytest.raises(EnvMisuse, match="never reset"):
        env.send(zeros, [0, 1])
    env.reset(seed=0)
    with pytest.raises(EnvMisuse, match=r"env_ids \[1, 2\] are not whole shards\. Shards: \[\[0, 1\], \[2, 3\]\]"):
        env.send(zeros, [1, 2])
    with pytest.raises(ShapeError, match="expected 2 actions"):
        env.send(zeros[:1], [0, 1])
    with pytest.raises(EnvMisuse, match="outside"):
        env.send(zeros + 3, [0, 1])
    with pytest.raises(EnvMisuse, match="0 were asked"):
        env.recv(1)
    env.send(zeros, [2, 3])
    with pytest.raises(EnvMisuse, match="4 environments are waited for, but 2 were asked"):
        env.recv(4)
    assert env.recv().env_ids.tolist() == [2, 3]
    env.close()


def test_one_failing_shard_leaves_the_others_in_step():
    env = make(2, fails="raises")
    env.reset(seed=0)
    with pytest.raises(RLinfError, match="the gripper is stuck") as caught:
        env.step(np.array([[0.5, 0.5], [0.25, 0.25]], np.float32))
    assert "simulator 1 (environments 1 to 1)" in caught.value.__notes__[0]
    env.reset(seed=0)
    env.step(np.zeros((2, 2), np.float32))
    env.close()


def test_check():
    with pytest.raises(UnknownName, match="no environment named 'maniskil'"):
        Parallel(env="maniskil").check("env")
    with pytest.raises(ConfigError, match=r"env\.params\.task_idd: unknown key"):
        Parallel(env="maniskill", params={"task_idd": 1}).check("env")
    with pytest.raises(ConfigError, match=r"env\.processes: expected at least 1, found 0"):
        Parallel(env="tabletop", processes=0).check("env")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_maniskill_keeps_the_contract_and_its_numbers():
    pytest.importorskip("mani_skill", reason="the extra rlinf-envs[maniskill] is not installed")
    from rlinf.envs import ManiSkill

    EnvContract(factory=lambda: Parallel(env="maniskill", processes=2).make(3, **SETTINGS), steps=8).run()
    env, local = Parallel(env="maniskill", processes=2, recycle=4).make(3, **SETTINGS), ManiSkill().make(3, **SETTINGS)
    assert play(env, 25) == play(local, 25)
    assert env.unwrapped.recycled > 0
    env.close()
    local.close()
