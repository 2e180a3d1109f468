"""What an arm sees and earns that is pushed into the table, and what robosuite computes for it."""

import importlib

import numpy as np


def trace(env, seed, steps):
    """The states and rewards of one environment, as bytes; the hand goes down always, so that there are contacts."""
    rng = np.random.default_rng(seed)
    parts = [env.reset(seed=[seed])[0]["states"].tobytes()]
    for _ in range(steps):
        action = rng.uniform(-1, 1, (1, 7)).astype(np.float32)
        action[0, 2] = -abs(action[0, 2])
        observation, reward, *_ = env.step(action)
        parts += [observation["states"].tobytes(), reward.tobytes()]
    return parts


def expect_lite_physics(full, lite, monkeypatch):
    """The same physics but for rounding, without the 50 calls of `forward` in a step of robosuite 1.4."""
    kind = importlib.import_module("robosuite.utils.binding_utils").MjSim
    forward, forwards = kind.forward, []
    monkeypatch.setattr(kind, "forward", lambda simulation: (forwards.append(1), forward(simulation))[1])
    moves = np.random.default_rng(0).uniform(-0.8, 0.8, (12, 1, 7)).astype(np.float32)
    seen, calls = [], []
    for env in (full, lite):
        env.reset(seed=[1])
        forwards.clear()
        seen.append(np.stack([env.step(move)[0]["states"] for move in moves]))
        calls.append(len(forwards))
        env.close()
    # 25 substeps, each of which calls it before the controller and once more in it, if the state is new to that.
    assert calls == [12 * 50 - 1, 0]
    assert not np.array_equal(seen[0][0], seen[0][-1])
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-4)
