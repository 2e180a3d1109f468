import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.group import GRPOPassK, grpo_passk
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ADVANTAGES
from rlinf.core.testing.advantage import AdvantageContract

# 7 has 1, 2, 3, 6: best 6 by 3, squares 14; -2 has 10, 20: best 20 by 10, squares 50; 5 has one answer
SCORE = torch.tensor([1.0, 10.0, 2.0, 20.0, 3.0, 6.0, 4.0])
GROUP = torch.tensor([7, -2, 7, -2, 7, 7, 5])


@pytest.mark.parametrize(
    ("options", "six", "twenty"),
    [
        ({"scale": "none"}, 3.0, 10.0),
        ({"eps": 0.0}, 3 / (14 / 3) ** 0.5, 10 / 50**0.5),
        ({"eps": 0.0, "unbiased": False}, 3 / 3.5**0.5, 2.0),
        ({"eps": 1.0}, 3 / ((14 / 3) ** 0.5 + 1), 10 / (50**0.5 + 1)),
        ({"scale": "batch", "eps": 0.0}, 3 / SCORE.std().item(), 10 / SCORE.std().item()),
    ],
)
def test_by_hand(options, six, twenty):
    torch.testing.assert_close(grpo_passk(SCORE, GROUP, **options), torch.tensor([0.0, 0.0, 0.0, twenty, 0.0, six, 0.0]))


def test_one_right_answer_counts_and_two_do_not():
    """Pass@k is 1 with one right answer of k, and no more with two."""
    group = torch.zeros(4, dtype=torch.int64)
    assert grpo_passk(torch.tensor([0.0, 1.0, 0.0, 0.0]), group, scale="none").tolist() == [0.0, 1.0, 0.0, 0.0]
    assert grpo_passk(torch.tensor([0.0, 1.0, 0.0, 1.0]), group, scale="none").tolist() == [0.0] * 4


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_that_agrees_and_a_group_of_one_give_exactly_zero(scale):
    score = torch.tensor([0.1, 0.1, 0.1, 1 / 3])
    assert grpo_passk(score, torch.tensor([0, 0, 0, 1]), scale=scale, eps=0.0).tolist() == [0.0] * 4
    assert grpo_passk(score[:0], torch.zeros(0, dtype=torch.int64), scale=scale).tolist() == []


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
    FLOATS,
    st.fixed_dictionaries(
        {
            "scale": st.sampled_from(["group", "batch", "none"]),
            "unbiased": st.booleans(),
            "eps": st.sampled_from([1e-6, 1e-4, 1.0]),
        }
    ),
)
def test_equals_its_specification(seed, rows, coarse, masked, dtype, options):
    torch.manual_seed(seed)
    score = (torch.randint(0, 2, (rows,)) * 0.1 if coarse else torch.randn(rows, dtype=torch.float64)).to(dtype)
    group = torch.tensor([10**15, -3, 5])[torch.randint(0, 3, (rows,))]
    valid = torch.rand(rows) < 0.7 if masked else None
    if valid is not None:
        score[~valid] = math.nan
    before = score.clone()
    found = grpo_passk(score, group, valid=valid, **options)
    expected = reference.grpo_passk(score.tolist(), group.tolist(), valid=None if valid is None else valid.tolist(), **options)
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(score.nan_to_num(9.0), before.nan_to_num(9.0))


@settings(max_examples=30)
@given(st.permutations(range(7)), st.sampled_from(["group", "batch", "none"]))
def test_the_order_of_rows_changes_nothing(order, scale):
    order = torch.tensor(order)
    torch.testing.assert_close(grpo_passk(SCORE[order], GROUP[order], scale=scale), grpo_passk(SCORE, GROUP, scale=scale)[order])


def test_over_ranks():
    two = grpo_passk(SCORE, GROUP, scale="batch", all_reduce=lambda x: 2 * x)
    torch.testing.assert_close(two[5].item(), 3 / (torch.cat([SCORE, SCORE]).std().item() + 1e-6))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((SCORE[None], GROUP[None]), ShapeError, r"grpo_passk\(score\): expected \[B\]"),
        ((SCORE, GROUP[:2]), ShapeError, r"grpo_passk\(group\)"),
        ((SCORE, GROUP.float()), ShapeError, r"grpo_passk\(group\): expected integers"),
    ],
)
def test_what_is_wrong_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        grpo_passk(*arguments)


@pytest.mark.parametrize(("field", "value"), [("scale", "batches"), ("eps", -1.0), ("normalize_advantages", "rows")])
def test_a_field_out_of_range_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        GRPOPassK(**{field: value})
    if field != "normalize_advantages":
        with pytest.raises(ConfigError, match=rf"grpo_passk\({field}\)"):
            grpo_passk(SCORE, GROUP, **{field: value})


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_contract(scale):
    AdvantageContract(advantage=GRPOPassK(scale=scale), as_array=torch.as_tensor, group_size=3).run()


def test_by_name():
    estimator = ADVANTAGES.build("grpo_passk", {"scale": "none"}, place="algorithm")
    reward = torch.tensor([[0.0, 3.0], [1.0, 9.0], [0.0, 0.5]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    advantage, target = estimator.of(CreditInputs(reward=reward, mask=mask, group=torch.tensor([4, 4, 4])))
    assert (advantage.tolist(), target) == ([[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]], None)
    assert GRPOPassK() == GRPOPassK(scale="group", unbiased=True, eps=1e-6, normalize_advantages=False)
