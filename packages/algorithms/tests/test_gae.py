import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.returns import GAE, gae
from rlinf.algorithms.advantages.statistics import whiten
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


def at(terminated=NO, truncated=NO, mask=None, gamma=0.9, lam=0.8, reward=REWARD, value=VALUE, value_next=None):
    return gae(reward, value, terminated, truncated, gamma=gamma, lam=lam, mask=mask, value_next=value_next)


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
        # a column that nobody decided is skipped: no decay, and the value after decision 0 is that of column 2
        ({"mask": torch.tensor([[True, False, True]])}, [1.634, 0.0, 0.95]),
        ({"mask": torch.tensor([[True, False, True]]), "value": torch.tensor([[0.5, 9.0, 2.0, 0.5]])}, [1.904, 0.0, -0.55]),
        ({"mask": torch.tensor([[True, False, True]]), "truncated": FIRST}, [0.95, 0.0, 0.95]),
        ({"mask": torch.tensor([[True, False, True]]), "truncated": ~FIRST}, [1.634, 0.0, 0.95]),
        ({"mask": torch.tensor([[False, True, True]])}, [0.0, 1.634, 0.95]),
        # what follows is said apart: 1 + 0.9 * next - 0.5, and the row may have no bootstrap column
        ({"value_next": torch.tensor([[0.0, 1.0, 2.0]]), "truncated": FIRST}, [0.5, 3.056, 2.3]),
        ({"value_next": torch.tensor([[0.0, 1.0, 2.0]]), "truncated": FIRST, "value": VALUE[:, :3]}, [0.5, 3.056, 2.3]),
        ({"value_next": torch.tensor([[0.0, 1.0, 2.0]]), "mask": torch.tensor([[True, False, True]])}, [2.156, 0.0, 2.3]),
        # a discount and a lambda of each decision: delta = [0.75, 0.95, 0.95], decay = [0.25, 0.9, 0.9]
        ({"gamma": torch.tensor([[0.5, 0.9, 0.9]]), "lam": torch.tensor([[0.5, 1.0, 1.0]])}, [1.20125, 1.805, 0.95]),
    ],
)
def test_by_hand(case, expected):
    advantage, target = at(**case)
    torch.testing.assert_close(advantage, torch.tensor([expected]))
    mask = case.get("mask", torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(target, torch.where(mask, advantage + case.get("value", VALUE)[:, :3], 0.0))


shapes = st.tuples(st.integers(1, 4), st.integers(1, 7))


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]]),
    ],
)
def test_the_numbers_of_rlax(lam, expected):
    """multistep_test.py, TruncatedGeneralizedAdvantageEstimationTest, of google-deepmind/rlax."""
    reward = torch.tensor([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]])
    value = torch.tensor([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]])
    gamma = torch.tensor([[0.99] * 5, [0.9, 0.9, 0.9, 0.0, 0.9]])
    no = torch.zeros(2, 5, dtype=torch.bool)
    for each in (lam, torch.full((2, 5), lam)):
        advantage, _ = gae(reward, value, no, no, gamma=gamma, lam=each)
        torch.testing.assert_close(advantage, torch.tensor(expected), atol=1e-3, rtol=0.0)


def test_a_row_across_a_reset_is_two_rows():
    """Decisions 0-1 are truncated at 7.0, decisions 2-3 begin anew: `value_next` keeps what `value` can't hold."""
    reward, value = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]])
    no, cut = torch.zeros(1, 4, dtype=torch.bool), torch.tensor([[False, True, False, False]])
    value_next = torch.tensor([[0.2, 7.0, 0.4, 0.5]])
    found, _ = gae(reward, value, no, cut, gamma=0.9, lam=0.8, value_next=value_next)
    first, _ = gae(reward[:, :2], torch.tensor([[0.1, 0.2, 7.0]]), no[:, :2], cut[:, :2], gamma=0.9, lam=0.8)
    second, _ = gae(reward[:, 2:], value[:, 2:], no[:, 2:], no[:, 2:], gamma=0.9, lam=0.8)
    torch.testing.assert_close(found, torch.cat([first, second], 1))


@settings(max_examples=30)
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


@pytest.mark.parametrize("name", ["value", "terminated", "truncated", "mask", "value_next", "gamma", "lam"])
def test_a_wrong_shape_names_the_argument(name):
    with pytest.raises(ShapeError, match=rf"gae\({name}\): expected shape"):
        at(**{name: torch.zeros(2, 3, dtype=torch.bool)})


@pytest.mark.parametrize("algorithm", [GAE(), GAE(normalize_advantages=False), GAE(gamma=1.0, gae_lambda=0.0)])
def test_contract(algorithm):
    AdvantageContract(advantage=algorithm, as_array=torch.as_tensor).run()


def test_gae_by_name():
    built = ADVANTAGES.build("gae", {"gamma": 0.8, "gae_lambda": 0.9}, place="algorithm")
    assert built == GAE(gamma=0.8, gae_lambda=0.9, normalize_advantages=True)
    with pytest.raises(ConfigError, match=r"algorithm\.gamma: expected a value in \[0, 1\], found 1.5"):
        ADVANTAGES.build("gae", {"gamma": 1.5}, place="algorithm")


def test_targets_are_not_whitened():
    trajectory = random_trajectory(5, 4, as_array=torch.as_tensor)
    plain, white = GAE(normalize_advantages=False)(trajectory), GAE()(trajectory)
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
        GAE()(Trajectory(**fields))


def test_credit_fits_a_batch():
    trajectory = random_trajectory(4, 3, as_array=torch.as_tensor)
    decisions = Batch(trajectory=trajectory, credit=GAE()(trajectory)).decisions()
    assert len(decisions) == int(trajectory.mask.sum())


def test_a_reward_without_a_time_axis_is_refused():
    with pytest.raises(ShapeError, match=r"gae\(reward\): expected \[B, T\], found \(3,\)"):
        at(reward=REWARD[0])


def test_the_value_after_each_decision_by_name():
    fields = {"reward": REWARD, "value": VALUE, "terminated": NO, "truncated": FIRST}
    after = torch.tensor([[0.0, 1.0, 2.0]])
    estimator = GAE(gamma=0.9, gae_lambda=0.8, normalize_advantages=False)
    found, _ = estimator.of(CreditInputs(**fields, value_next=after))
    torch.testing.assert_close(found, torch.tensor([[0.5, 3.056, 2.3]]))
    white, _ = GAE(gamma=0.9, gae_lambda=0.8).normalized(CreditInputs(**fields, value_next=after))
    torch.testing.assert_close(white, whiten(found, ~NO))


@pytest.mark.parametrize("field", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_field_out_of_range_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        GAE(**{field: value})
