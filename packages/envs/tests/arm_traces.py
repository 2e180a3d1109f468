"""What an arm sees and earns that is pushed into the table."""

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
