import math
from dataclasses import replace

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.optimal_token import OptimalTokenBaseline, optimal_token_baseline
from rlinf.algorithms.compat import calculate_adv_and_returns
from rlinf.core.data import Credit
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

# w = 1 − 2π + Σπ²: of π 1/2 and Σπ² 1/2 it is 1/2, of π 1/4 and Σπ² 1/2 it is 1
LOGPROB = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.25]]).log()
SQUARED = torch.full((2, 3), 0.5)
REWARD = torch.tensor([[0.0, 0.0, 1.0], [0.0, 4.0, 0.0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
GROUP = torch.tensor([8, 8])


def test_by_hand():
    """W = (0.5, 1.5, 2.5) and (1, 2): B₁ = (0.5 · 1 + 1 · 4) / 1.5 = 3, B₂ = (1.5 + 8) / 3.5, and none where one row is left."""
    found = optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB, SQUARED)
    second = 9.5 / 3.5
    torch.testing.assert_close(found, torch.tensor([[-2.0, 1 - second, 1.0], [1.0, 4 - second, 0.0]]))
    found = optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB, SQUARED, handle_zero_tail=False)
    torch.testing.assert_close(found[:, 2], torch.zeros(2))
    found = optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB, SQUARED, eps=0.5)
    torch.testing.assert_close(found[0, 0].item(), 1 - 4.5 / 2.0)


def test_discounted():
    found = optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB, SQUARED, gamma=0.5)
    first = (0.5 * 0.25 + 1 * 2.0) / 1.5
    torch.testing.assert_close(found[:, 0], torch.tensor([0.25 - first, 2.0 - first]))


def test_equal_rows_have_the_mean_as_their_baseline():
    """Then it is Dr. GRPO's."""
    score = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    whole, group = torch.ones(4, 2, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    found = optimal_token_baseline(score, whole, group, torch.full((4, 2), -1.0), torch.full((4, 2), 0.4))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [-0.5, -0.5], [-0.5, -0.5], [0.5, 0.5]]))


def test_its_variance_is_the_least_of_all_baselines():
    """Σ W (G − B)² is least at B."""
    torch.manual_seed(0)
    reward, logprob = torch.randn(8, 1), torch.rand(8, 1).log()
    squared = logprob.exp().square() + (1 - logprob.exp()).square()
    whole, group = torch.ones(8, 1, dtype=torch.bool), torch.zeros(8, dtype=torch.int64)
    energy = 1 - 2 * logprob.exp() + squared
    best = optimal_token_baseline(reward, whole, group, logprob, squared)

    def spread(advantage):
        return (energy * advantage.square()).sum()

    for shift in (-0.1, 0.1):
        assert spread(best) < spread(best + shift)
    assert spread(best) < spread(reward - reward.mean())


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    FLOATS,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.fixed_dictionaries(
        {"gamma": st.sampled_from([0.0, 0.9, 1.0]), "handle_zero_tail": st.booleans(), "eps": st.sampled_from([1e-8, 0.1])}
    ),
)
def test_equals_its_specification(seed, dtype, share, options):
    torch.manual_seed(seed)
    rows, columns = 5, 4
    mask = torch.rand(rows, columns) < share
    tensors = [torch.randn(rows, columns, dtype=torch.float64), torch.rand(rows, columns, dtype=torch.float64).log()]
    reward, logprob, squared = (x.to(dtype) for x in (*tensors, torch.rand(rows, columns, dtype=torch.float64)))
    for x in (reward, logprob, squared):
        x[~mask] = math.nan
    group = torch.tensor([3, -1, 3, 10**12, -1])
    before = [x.clone() for x in (reward, logprob, squared)]
    found = optimal_token_baseline(reward, mask, group, logprob, squared, **options)
    expected = reference.optimal_token_baseline(
        reward.tolist(), mask.tolist(), group.tolist(), logprob.tolist(), squared.tolist(), **options
    )
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for x, y in zip((reward, logprob, squared), before, strict=True):
        assert torch.equal(x.nan_to_num(9.0), y.nan_to_num(9.0))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"gamma": 1.5}, ConfigError, r"gamma"),
        ({"eps": 0.0}, ConfigError, r"optimal_token_baseline\(eps\)"),
        ({"reward": REWARD[0]}, ShapeError, r"optimal_token_baseline\(reward\): expected \[B, T\]"),
        ({"group": GROUP.float()}, ShapeError, r"optimal_token_baseline\(group\): expected integers"),
        ({"sum_pi_squared": SQUARED[:1]}, ShapeError, r"optimal_token_baseline\(sum_pi_squared\)"),
    ],
)
def test_what_is_wrong_is_named(changes, error, message):
    arguments = {"reward": REWARD, "mask": MASK, "group": GROUP, "logprob": LOGPROB, "sum_pi_squared": SQUARED}
    with pytest.raises(error, match=message):
        optimal_token_baseline(**(arguments | changes))


def test_by_name():
    tensors = {"reward": REWARD, "mask": MASK, "group": GROUP, "logprob": LOGPROB}
    found, target = calculate_adv_and_returns(adv_type="optimal_token_baseline", **tensors, sum_pi_squared=SQUARED, gamma=0.5)
    assert torch.equal(found, optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB, SQUARED, gamma=0.5))
    assert target is None
    newer = calculate_adv_and_returns(
        adv_type="optimal_token_baseline", **tensors, sum_pi_squared=SQUARED, logprob_proximal=LOGPROB - 1
    )
    assert torch.equal(newer[0], optimal_token_baseline(REWARD, MASK, GROUP, LOGPROB - 1, SQUARED))
    with pytest.raises(ShapeError, match=r"OptimalTokenBaseline\(sum_pi_squared\).*Pass Σ π²"):
        calculate_adv_and_returns(adv_type="optimal_token_baseline", **tensors)
    assert OptimalTokenBaseline() == OptimalTokenBaseline(gamma=1.0, handle_zero_tail=True, eps=1e-8)


def test_contract():
    def advantage(trajectory, *, all_reduce=None):
        x = replace(CreditInputs.of(trajectory), logprob=-trajectory.reward.abs())
        found, _ = OptimalTokenBaseline().of(replace(x, sum_pi_squared=torch.full_like(trajectory.reward, 0.5)))
        return Credit(advantage=found)

    AdvantageContract(advantage=advantage, as_array=torch.as_tensor, group_size=2).run()
