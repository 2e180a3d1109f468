import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms import Gae, gae
from rlinf.core import Batch, Trajectory
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ADVANTAGES
from rlinf.core.testing.advantage import AdvantageContract
from rlinf.core.testing.samples import random_trajectory

REWARD = torch.ones(1, 3)
VALUE = torch.full((1, 4), 0.5)
NO = torch.zeros(1, 3, dtype=torch.bool)
LAST = torch.tensor([[False, False, True]])
FIRST = torch.tensor([[True, False, False]])


def at(terminated=NO, truncated=NO, mask=None, gamma=0.9, lam=0.8, reward=REWARD, value=VALUE):
    return gae(reward, value, terminated, truncated, gamma=gamma, lam=lam, mask=mask)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # delta = 1 + 0.9 * 0.5 - 0.5 = 0.95 and, where the task ended, 1 - 0.5 = 0.5; decay = 0.72
        ({}, [2.12648, 1.634, 0.95]),
        ({"truncated": LAST}, [2.12648, 1.634, 0.95]),
        ({"terminated": LAST}, [1.8932, 1.31, 0.5]),
        ({"terminated": LAST, "truncated": LAST}, [1.8932, 1.31, 0.5]),
        ({"truncated": FIRST}, [0.95, 1.634, 0.95]),
        ({"terminated": FIRST}, [0.5, 1.634, 0.95]),
        ({"mask": ~LAST}, [1.634, 0.95, 0.0]),
        ({"mask": torch.tensor([[True, False, True]])}, [0.95, 0.0, 0.95]),
    ],
)
def test_by_hand(case, expected):
    advantage, target = at(**case)
    torch.testing.assert_close(advantage, torch.tensor([expected]))
    mask = case.get("mask", torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(target, torch.where(mask, advantage + 0.5, 0.0))


def reference(reward, value, terminated, truncated, mask, gamma, lam):
    """The definition as a sum over the future, one decision at a time, in Python's numbers."""
    rows, horizon = reward.shape
    out = np.zeros((rows, horizon))
    for b, t in itertools.product(range(rows), range(horizon)):
        weight = 1.0
        for k in range(t, horizon):
            if not mask[b, k]:
                break
            bootstrap = 0.0 if terminated[b, k] else value[b, k + 1]
            out[b, t] += weight * (reward[b, k] + gamma * bootstrap - value[b, k])
            weight *= gamma * lam
            if terminated[b, k] or truncated[b, k]:
                break
    return out


shapes = st.tuples(st.integers(1, 4), st.integers(1, 7))


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_sum_over_the_future(shape, seed, gamma, lam):
    random = np.random.default_rng(seed)
    reward, value = random.normal(size=shape), random.normal(size=(shape[0], shape[1] + 1))
    terminated, truncated, mask = (random.random(shape) < p for p in (0.2, 0.2, 0.8))
    tensors = [torch.tensor(x) for x in (reward, value, terminated, truncated)]
    before = [x.clone() for x in tensors]
    advantage, _ = gae(*tensors, gamma=gamma, lam=lam, mask=torch.tensor(mask))
    expected = reference(reward, value, terminated, truncated, mask, gamma, lam)
    np.testing.assert_allclose(advantage.numpy(), expected, atol=1e-12)
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))


@settings(max_examples=30, deadline=None)
@given(shapes, st.integers(0, 10_000), st.floats(0, 1))
def test_lambda_at_its_ends(shape, seed, gamma):
    torch.manual_seed(seed)
    reward, value = torch.randn(shape, dtype=torch.float64), torch.randn(shape[0], shape[1] + 1, dtype=torch.float64)
    no = torch.zeros(shape, dtype=torch.bool)
    one_step, _ = gae(reward, value, no, no, gamma=gamma, lam=0.0)
    torch.testing.assert_close(one_step, reward + gamma * value[:, 1:] - value[:, :-1])
    _, monte_carlo = gae(reward, value, no, no, gamma=gamma, lam=1.0)
    powers = gamma ** torch.arange(shape[1] + 1, dtype=torch.float64)
    rewards_to_go = torch.cat([reward, value[:, -1:]], 1)
    torch.testing.assert_close(monte_carlo[:, 0], (powers * rewards_to_go).sum(1))
    myopic, _ = gae(reward, value, no, no, gamma=0.0, lam=1.0)
    torch.testing.assert_close(myopic, reward - value[:, :-1])


def test_what_lies_beyond_an_end_never_matters():
    """Termination forgets the next value, truncation uses it; neither sees what follows."""
    other_value, other_reward = VALUE.clone(), REWARD.clone()
    other_value[0, 2:] = 1e6
    other_reward[0, 1:] = -1e6
    for ends in ({"terminated": FIRST}, {"truncated": FIRST}):
        assert at(**ends, value=other_value, reward=other_reward)[0][0, 0] == at(**ends)[0][0, 0]
    moved = VALUE.clone()
    moved[0, 1] += 1.0
    assert at(terminated=FIRST, value=moved)[0][0, 0] == at(terminated=FIRST)[0][0, 0]
    torch.testing.assert_close(at(truncated=FIRST, value=moved)[0][0, 0], at(truncated=FIRST)[0][0, 0] + 0.9)


def test_padding_may_hold_anything():
    nan = REWARD.clone()
    nan[0, 2] = float("nan")
    value = VALUE.clone()
    value[0, 3] = float("nan")
    advantage, target = at(mask=~LAST, reward=nan, value=value)
    torch.testing.assert_close(advantage, at(mask=~LAST)[0])
    assert target[0, 2] == 0


@pytest.mark.parametrize("name", ["value", "terminated", "truncated", "mask"])
def test_a_wrong_shape_names_the_argument(name):
    with pytest.raises(ShapeError, match=rf"gae\({name}\): expected shape"):
        at(**{name: torch.zeros(2, 3, dtype=torch.bool)})


@pytest.mark.parametrize("algorithm", [Gae(), Gae(normalize_advantages=False), Gae(gamma=1.0, gae_lambda=0.0)])
def test_contract(algorithm):
    AdvantageContract(advantage=algorithm, as_array=torch.as_tensor).run()


def test_gae_by_name():
    built = ADVANTAGES.build("gae", {"gamma": 0.8, "gae_lambda": 0.9}, place="algorithm")
    assert built == Gae(gamma=0.8, gae_lambda=0.9, normalize_advantages=True)
    with pytest.raises(ConfigError, match=r"algorithm\.gamma: expected a value in \[0, 1\], found 1.5"):
        ADVANTAGES.build("gae", {"gamma": 1.5}, place="algorithm")


def test_targets_are_not_whitened():
    trajectory = random_trajectory(5, 4, as_array=torch.as_tensor)
    plain, white = Gae(normalize_advantages=False)(trajectory), Gae()(trajectory)
    assert torch.equal(plain.target, white.target)
    valid = white.advantage[trajectory.mask]
    assert valid.mean().abs() < 1e-6
    torch.testing.assert_close(valid.std(unbiased=False), torch.tensor(1.0))
    expected = torch.where(trajectory.mask, plain.advantage + trajectory.value[:, :-1], 0.0)
    assert torch.equal(plain.target, expected)


def test_no_critic_is_an_error():
    trajectory = random_trajectory(2, 2, as_array=torch.as_tensor)
    fields = {name: getattr(trajectory, name) for name in Trajectory.__slots__} | {"value": None}
    with pytest.raises(ShapeError, match="with a critic"):
        Gae()(Trajectory(**fields))


def test_credit_fits_a_batch():
    trajectory = random_trajectory(4, 3, as_array=torch.as_tensor)
    decisions = Batch(trajectory=trajectory, credit=Gae()(trajectory)).decisions()
    assert len(decisions) == int(trajectory.mask.sum())
