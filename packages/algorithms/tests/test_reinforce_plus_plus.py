import math
from dataclasses import replace

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.reinforce_pp import ReinforcePlusPlus, reinforce_plus_plus
from rlinf.algorithms.advantages.statistics import whiten
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

REWARD = torch.tensor([[0.0, 0.0, 3.0], [1.0, 9.0, 9.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])
KL = torch.tensor([[0.5, 1.0, -0.5], [2.0, 7.0, 7.0]])


def test_by_hand():
    advantage, returns = reinforce_plus_plus(REWARD, MASK)
    assert returns.tolist() == [[3.0, 3.0, 3.0], [1.0, 0.0, 0.0]]
    # 3, 3, 3, 1: mean 2.5, variance 3/4
    expected = torch.tensor([[0.5, 0.5, 0.5], [-1.5, 0.0, 0.0]])
    torch.testing.assert_close(advantage, expected / 0.75**0.5)
    torch.testing.assert_close(reinforce_plus_plus(REWARD, MASK, unbiased=True)[0], expected)


def test_the_penalty_is_paid_token_by_token_and_the_discount_runs_along_time():
    _, returns = reinforce_plus_plus(REWARD, MASK, kl=KL, kl_beta=0.1, gamma=0.5)
    torch.testing.assert_close(returns, torch.tensor([[-0.05 + 0.5 * (-0.1 + 0.5 * 3.05), -0.1 + 0.5 * 3.05, 3.05], [0.8, 0, 0]]))


def test_the_mean_of_the_group_is_taken_off_the_last_token():
    """Scores 3 and 1 of one question: 2 is taken off, in the last column that each row has."""
    _, returns = reinforce_plus_plus(REWARD, MASK, group=torch.tensor([4, 4]), gamma=0.5)
    torch.testing.assert_close(returns, torch.tensor([[0.25, 0.5, 1.0], [-1.0, 0.0, 0.0]]))
    alone, _ = reinforce_plus_plus(REWARD, MASK, group=torch.tensor([4, 5]))
    assert torch.equal(alone, torch.zeros(2, 3))


def test_tokens_of_others_are_skipped_without_discount():
    reward, mask = torch.tensor([[0.0, math.nan, 4.0, math.nan]]), torch.tensor([[True, False, True, False]])
    _, returns = reinforce_plus_plus(reward, mask, gamma=0.5)
    assert returns.tolist() == [[2.0, 0.0, 4.0, 0.0]]


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.integers(0, 5),
    st.integers(1, 6),
    FLOATS,
    st.sampled_from([0.0, 0.6, 1.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_equals_its_specification(seed, rows, columns, dtype, gamma, with_kl, with_group, unbiased):
    torch.manual_seed(seed)
    reward, kl = (torch.randn(rows, columns, dtype=torch.float64).to(dtype) for _ in range(2))
    mask, group = torch.rand(rows, columns) < 0.7, torch.randint(0, 3, (rows,))
    reward[~mask], kl[~mask] = math.nan, math.nan
    before = reward.clone(), kl.clone()
    options = {"gamma": gamma, "kl_beta": 0.3, "unbiased": unbiased}
    found = reinforce_plus_plus(reward, mask, kl=kl if with_kl else None, group=group if with_group else None, **options)
    lists = {"kl": kl.tolist() if with_kl else None, "group": group.tolist() if with_group else None}
    expected = reference.reinforce_plus_plus(reward.tolist(), mask.tolist(), **lists, **options)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        two = torch.tensor(two, dtype=torch.float64).reshape(one.shape)
        torch.testing.assert_close(one.double(), two, rtol=tolerance, atol=tolerance)
    assert all(torch.equal(x.nan_to_num(9.0), y.nan_to_num(9.0)) for x, y in zip((reward, kl), before, strict=True))


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"kl": KL[:1]}, "kl"), ({"group": torch.zeros(3)}, "group")],
)
def test_a_wrong_shape_names_the_argument(options, argument):
    with pytest.raises(ShapeError, match=rf"reinforce_plus_plus\({argument}\)"):
        reinforce_plus_plus(REWARD, MASK, **options)
    with pytest.raises(ShapeError, match=r"reinforce_plus_plus\(mask\)"):
        reinforce_plus_plus(REWARD, MASK[:1], **options)


@pytest.mark.parametrize("estimator", [ReinforcePlusPlus(), ReinforcePlusPlus(use_reinpp_baseline=True, gamma=0.9, unbiased=True)])
@pytest.mark.parametrize("group_size", [1, 3])
def test_contract(estimator, group_size):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor, group_size=group_size).run()


def test_contract_with_a_penalty():
    def advantage(trajectory, *, all_reduce=None):
        estimator = ReinforcePlusPlus(reinpp_kl_beta=0.5)
        return estimator(replace(trajectory, reference=trajectory.action[:, :, 0, 0] - 1.0), all_reduce=all_reduce)

    AdvantageContract(advantage=advantage, as_array=torch.as_tensor).run()


def test_by_name():
    torch.manual_seed(0)
    logprob, reference = torch.randn(2, 3, 2), torch.randn(2, 3)
    group = torch.tensor([4, 4])
    x = CreditInputs(reward=REWARD, mask=MASK, group=group, logprob=logprob, logprob_ref=reference)
    estimator = ReinforcePlusPlus(use_reinpp_baseline=True, reinpp_kl_beta=0.2, gamma=0.9, unbiased=True)
    found, target = estimator.of(x, all_reduce=lambda total: total * 2)
    kl = logprob.sum(2) - reference
    _, returns = reinforce_plus_plus(REWARD, MASK, kl=kl, kl_beta=0.2, gamma=0.9, group=group)
    torch.testing.assert_close(found, whiten(returns, MASK, lambda total: total * 2, unbiased=True))
    assert target is None
    plain, _ = ReinforcePlusPlus().of(replace(x, logprob=None, logprob_ref=None, group=None))
    torch.testing.assert_close(plain, reinforce_plus_plus(REWARD, MASK)[0])


def test_by_name_log_probabilities_of_other_shapes_are_refused():
    x = CreditInputs(reward=REWARD, mask=MASK, logprob=KL, logprob_ref=KL[:1])
    with pytest.raises(ShapeError, match=r"ReinforcePlusPlus\(logprob_ref\)"):
        ReinforcePlusPlus(reinpp_kl_beta=0.1).of(x)


def test_by_name_a_score_is_paid_at_the_end():
    x = CreditInputs(mask=MASK, score=torch.tensor([3.0, 1.0]))
    found, _ = ReinforcePlusPlus().of(x)
    torch.testing.assert_close(found, reinforce_plus_plus(REWARD, MASK)[0])


@pytest.mark.parametrize("fields", [{"gamma": 1.1}, {"gamma": -0.1}, {"reinpp_kl_beta": -0.1}])
def test_a_field_out_of_range_is_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        ReinforcePlusPlus(**fields)


@pytest.mark.parametrize(
    ("estimator", "missing"),
    [
        (ReinforcePlusPlus(), "reward"),
        (ReinforcePlusPlus(reinpp_kl_beta=0.1), "logprob_ref"),
        (ReinforcePlusPlus(use_reinpp_baseline=True), "group"),
    ],
)
def test_what_is_missing_is_named(estimator, missing):
    fields = {"reward": REWARD, "mask": MASK, "logprob": KL, "logprob_ref": KL, "group": torch.zeros(2)} | {missing: None}
    with pytest.raises(ShapeError, match=rf"ReinforcePlusPlus\({missing}\)"):
        estimator.of(CreditInputs(**fields))
