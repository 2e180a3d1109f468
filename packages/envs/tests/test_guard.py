from __future__ import annotations

import numpy as np
import pytest

from rlinf.core.errors import ShapeError
from rlinf.envs.guard import EnvMisuse


@pytest.fixture
def env(counters):
    env = counters(2, 9)
    yield env
    env.close()


ZERO = np.zeros((2, 2), np.float32)


def test_step_before_reset(env):
    with pytest.raises(EnvMisuse, match=r"^env\.step: the environments were never reset"):
        env.step(ZERO)


def test_partial_reset_before_a_full_one(env):
    with pytest.raises(EnvMisuse, match=r"^env\.reset: environments \[1\] were never reset"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})


def test_wrong_shape(env):
    env.reset(seed=1)
    with pytest.raises(ShapeError, match=r"^env\.step: expected actions of shape \[2, 2\], found \[2, 3\]"):
        env.step(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "is nan at index"), (np.inf, "is inf at index"), (1.001, r"outside \[-1"), (-2, "outside")]
)
def test_wrong_value(env, value, message):
    env.reset(seed=1)
    action = ZERO.copy()
    action[1, 0] = value
    with pytest.raises(EnvMisuse, match=r"^env\.step: the action of environment 1 .*" + message):
        env.step(action)
    assert env.step(ZERO)[0]["states"][:, 1].tolist() == [1, 1], "a refused action moves nothing"


def test_rounding_errors_at_the_bound_are_tolerated(env):
    env.reset(seed=1)
    env.step(np.full((2, 2), 1.0 + 1e-6, np.float32))


def test_step_after_the_end(env):
    env.reset(seed=1)
    env.step(ZERO)
    done = env.step(ZERO)[2]
    with pytest.raises(EnvMisuse, match=r"^env\.step: the episodes of environments \[0\] have ended.*reset_mask"):
        env.step(ZERO)
    env.reset(seed=2, options={"reset_mask": done})
    env.step(ZERO)


def test_closed(env):
    env.reset(seed=1)
    env.close()
    env.close()
    for call in (lambda: env.step(ZERO), lambda: env.reset(seed=1)):
        with pytest.raises(EnvMisuse, match="closed"):
            call()


@pytest.mark.parametrize(
    ("mask", "error"),
    [([True], ShapeError), ([1, 0], ShapeError), (np.zeros(2, np.bool_), EnvMisuse)],
)
def test_wrong_mask(env, mask, error):
    env.reset(seed=1)
    with pytest.raises(error, match=r"env\.reset: reset_mask"):
        env.reset(seed=1, options={"reset_mask": np.array(mask)})


def test_wrong_seeds(env):
    with pytest.raises(ShapeError, match=r"expected 2 seeds, found 3"):
        env.reset(seed=[1, 2, 3])
    for seed in (-1, 2**31):
        with pytest.raises(EnvMisuse, match=r"seeds must lie in \[0, 2\*\*31\)"):
            env.reset(seed=[1, seed])


def test_one_seed_means_one_for_each(env):
    assert env.reset(seed=7)[0]["states"][:, 0].tolist() == [7, 8]


def test_missing_seeds_are_drawn_and_differ(env):
    starts = [tuple(env.reset()[0]["states"][:, 0]) for _ in range(3)]
    assert len(set(starts)) == 3
    assert all(a != b for a, b in starts)


def test_options_of_the_caller_are_not_changed(env):
    env.reset(seed=1)
    options = {"reset_mask": np.array([True, False])}
    env.reset(seed=1, options=options)
    assert list(options) == ["reset_mask"]
