from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.wrappers.contract import EnforceContract, EnvMisuse
from rlinf.envs.wrappers.episodes import EpisodeStatistics
from rlinf.envs.wrappers.latency import Latency


def executed(env, count, seed=(1,)):
    """What was executed at each step, when step t was given (t + 1) / 100."""
    env.reset(seed=list(seed))
    rewards = [env.step(np.full((env.num_envs, 2), (t + 1) / 100, np.float32))[1] for t in range(count)]
    return np.rint(np.array(rewards).T * 100).astype(int).tolist()


@pytest.mark.parametrize(("steps", "wanted"), [(0, [1, 2, 3, 4]), (1, [0, 1, 2, 3]), (3, [0, 0, 0, 1])])
def test_a_fixed_delay(halting, steps, wanted):
    assert executed(Latency(halting(99, limit=20), steps=steps), 4) == [wanted]


def test_the_idle_action_comes_first_and_in_between_if_asked_for(halting):
    assert executed(Latency(halting(99, limit=20), steps=2, idle=[0.5, 0]), 4) == [[50, 50, 1, 2]]
    (hold,), (idle,) = (executed(Latency(halting(99, limit=20), steps=(0, 4), meanwhile=how), 20) for how in ("hold", "idle"))
    arrivals = [t for t in range(20) if t == 0 or hold[t] != hold[t - 1]]
    assert 3 < len(arrivals) < 18
    assert all(idle[t] == (hold[t] if t in arrivals else 0) for t in range(20))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31 - 1), least=st.integers(0, 3), span=st.integers(0, 4))
def test_an_action_is_executed_between_its_bounds_and_never_after_a_newer_one(counter, seed, least, span):
    inner = EpisodeStatistics(SequentialVectorEnv([counter]), 30)
    (seen,) = executed(Latency(inner, steps=(least, least + span)), 20, [seed])
    for t, action in enumerate(seen):
        decided = action - 1
        assert decided == -1 or t - least - span <= decided <= t - least
        assert decided >= 0 or t < least + span
    assert seen == sorted(seen)


def test_it_depends_on_the_seed_of_the_episode_alone(halting):
    env = Latency(halting(99, 99, limit=20), steps=(0, 3))
    first = executed(env, 15, [3, 4])
    assert executed(env, 15, [4, 3]) == first[::-1]
    assert executed(env, 15, [3, 4]) == first
    assert first[0] != first[1]


def test_a_partial_reset_forgets_what_was_under_way_there_only(halting):
    env = Latency(halting(99, 99, limit=20), steps=2)
    executed(env, 3, [1, 2])
    env.reset(seed=[5, 6], options={"reset_mask": np.array([True, False])})
    rewards = [env.step(np.full((2, 2), 0.5, np.float32))[1] for _ in range(3)]
    np.testing.assert_allclose(np.array(rewards).T, [[0, 0, 0.5], [0.02, 0.03, 0.5]], atol=1e-6)


def test_in_a_chunk_an_ended_environment_receives_nothing(halting):
    env = Latency(halting(2, 9, limit=20), steps=1)
    env.reset(seed=[1, 2])
    chunk = np.zeros((2, 4, 2), np.float32)
    chunk[:, :, 0] = [0.1, 0.2, 0.3, 0.4]
    np.testing.assert_allclose(chunk_step(env, chunk).rewards, [[0, 0.1, 0, 0], [0, 0.1, 0.2, 0.3]])


def test_wrong_settings(halting):
    for steps in (-1, (2, 1)):
        with pytest.raises(ConfigError, match=r"latency\.steps"):
            Latency(halting(9, limit=20), steps=steps)
    with pytest.raises(ShapeError, match=r"latency\.idle"):
        Latency(halting(9, limit=20), steps=1, idle=[0.0])


def test_inside_enforce_contract_it_keeps_the_contract(counters):
    EnvContract(factory=lambda: EnforceContract(Latency(counters(99, 99, 99, limit=8), steps=(0, 3)))).run()
    env = EnforceContract(Latency(counters(99), steps=2))
    env.reset(seed=1)
    with pytest.raises(EnvMisuse, match="not finite"):
        env.step(np.full((1, 2), np.nan, np.float32))
