import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.group import GRPO, OPO, RLOO, ReMax, grpo, opo, remax, rloo
from rlinf.algorithms.advantages.grouping import numbered, pairs
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

# two questions, their answers mixed: 7 has 1, 2, 3, 6 (mean 3, squares 14); -2 has 10, 20 (mean 15, squares 50); 5 has one answer
SCORE = torch.tensor([1.0, 10.0, 2.0, 20.0, 3.0, 6.0, 4.0])
GROUP = torch.tensor([7, -2, 7, -2, 7, 7, 5])


def tensor(*numbers):
    return torch.tensor(numbers)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scale": "none"}, [-2.0, -5.0, -1.0, 5.0, 0.0, 3.0, 0.0]),
        ({"eps": 0.0}, [x / (14 / 3) ** 0.5 for x in (-2.0, 0, -1.0, 0, 0.0, 3.0, 0)]),
        ({"eps": 0.0, "unbiased": False}, [x / 3.5**0.5 for x in (-2.0, 0, -1.0, 0, 0.0, 3.0, 0)]),
        ({"eps": 1.0}, [x / ((14 / 3) ** 0.5 + 1) for x in (-2.0, 0, -1.0, 0, 0.0, 3.0, 0)]),
        ({"scale": "none", "leave_one_out": True}, [-8 / 3, -10.0, -4 / 3, 10.0, 0.0, 4.0, 0.0]),
    ],
)
def test_by_hand(options, expected):
    expected = torch.tensor(expected)
    if options.get("scale") is None:
        half = 5 / ((50**0.5 if options.get("unbiased", True) else 5.0) + options["eps"])
        expected[1], expected[3] = -half, half
    torch.testing.assert_close(grpo(SCORE, GROUP, **options), expected)


def test_the_default_is_the_unbiased_deviation_of_the_group():
    expected = (SCORE[:1] - 3.0) / (SCORE[[0, 2, 4, 5]].std() + 1e-6)
    torch.testing.assert_close(grpo(SCORE, GROUP)[:1], expected)


def test_scaled_by_the_batch():
    """TRL's scale_rewards="batch": centred by group, divided by the deviation of all scores."""
    centred = tensor(-2.0, -5.0, -1.0, 5.0, 0.0, 3.0, 0.0)
    torch.testing.assert_close(grpo(SCORE, GROUP, scale="batch", eps=1e-4), centred / (SCORE.std() + 1e-4))
    population = grpo(SCORE, GROUP, scale="batch", eps=1e-4, unbiased=False)
    torch.testing.assert_close(population, centred / (SCORE.std(unbiased=False) + 1e-4))
    two_ranks = grpo(SCORE, GROUP, scale="batch", eps=1e-4, all_reduce=lambda x: 2 * x)
    torch.testing.assert_close(two_ranks, centred / (torch.cat([SCORE, SCORE]).std() + 1e-4))


def test_remax_by_hand():
    found = remax(tensor(1.0, 2.0, math.nan), tensor(0.5, 3.0, 1.0), valid=torch.tensor([True, True, False]))
    assert found.tolist() == [0.5, -1.0, 0.0]
    assert remax(tensor(1.0), tensor(0.25)).tolist() == [0.75]


def test_opo_by_hand():
    """Scores 1 and 5 of lengths 3 and 1: the baseline is 2, not 3."""
    found = opo(tensor(1.0, 5.0, 9.0), torch.tensor([0, 0, 1]), torch.tensor([3, 1, 2]))
    assert found.tolist() == [-1.0, 3.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -0.7, 1e6 + 0.1])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_a_group_that_agrees_gives_exactly_zero(dtype, value, size):
    score = torch.full((size,), value, dtype=dtype) if dtype != torch.float16 else torch.full((size,), value % 1, dtype=dtype)
    group = torch.zeros(size, dtype=torch.int64)
    for scale in ("group", "none"):
        for leave_one_out in (False, True):
            found = grpo(score, group, scale=scale, eps=0.0, leave_one_out=leave_one_out)
            assert found.tolist() == [0.0] * size
    assert rloo(score, group).tolist() == [0.0] * size
    assert grpo(score, group, scale="batch").tolist() == [0.0] * size
    assert opo(score, group, torch.arange(size) + 1).tolist() == [0.0] * size


@st.composite
def scored(draw):
    torch.manual_seed(draw(st.integers(0, 10_000)))
    rows = draw(st.integers(0, 9))
    dtype = draw(FLOATS)
    coarse = draw(st.booleans())
    score = (torch.randint(0, 2, (rows,)) * 0.1 if coarse else torch.randn(rows, dtype=torch.float64)).to(dtype)
    names = torch.tensor(draw(st.sampled_from([[0, 1, 2], [5, -3, 5], [10**15, -(10**15), 3]])))
    valid = torch.rand(rows) < 0.7 if draw(st.booleans()) else None
    if valid is not None:
        score[~valid] = math.nan
    return score, names[torch.randint(0, 3, (rows,))], valid


def close(found, expected, dtype):
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)


def plain(x):
    return None if x is None else x.tolist()


@settings(max_examples=40)
@given(scored(), st.sampled_from(["group", "batch", "none"]), st.booleans(), st.booleans(), st.sampled_from([1e-6, 1e-4, 1.0]))
def test_grpo_equals_its_specification(x, scale, unbiased, leave_one_out, eps):
    score, group, valid = x
    before = score.clone()
    options = {"scale": scale, "unbiased": unbiased, "leave_one_out": leave_one_out, "eps": eps}
    found = grpo(score, group, valid=valid, **options)
    close(found, reference.grpo(score.tolist(), group.tolist(), valid=plain(valid), **options), score.dtype)
    assert torch.equal(score.nan_to_num(9.0), before.nan_to_num(9.0))


@settings(max_examples=40)
@given(scored())
def test_baselines_equal_their_specifications(x):
    score, group, valid = x
    length, baseline = torch.randint(0, 4, score.shape), torch.randn(score.shape).to(score.dtype)
    arguments = score.tolist(), group.tolist()
    close(rloo(score, group, valid=valid), reference.rloo(*arguments, valid=plain(valid)), score.dtype)
    close(opo(score, group, length, valid=valid), reference.opo(*arguments, length.tolist(), valid=plain(valid)), score.dtype)
    expected = reference.remax(score.tolist(), baseline.tolist(), valid=plain(valid))
    close(remax(score, baseline, valid=valid), expected, score.dtype)


@settings(max_examples=30)
@given(scored(), st.sampled_from(["group", "batch", "none"]))
def test_the_order_of_rows_and_the_names_of_groups_change_nothing(x, scale):
    score, group, valid = x
    order = torch.randperm(len(score))
    expected = grpo(score, group, valid=valid, scale=scale)
    found = grpo(score[order], group[order] * 3 + 11, valid=None if valid is None else valid[order], scale=scale)
    torch.testing.assert_close(found, expected[order])


@settings(max_examples=30)
@given(scored(), st.booleans())
def test_rows_that_are_not_valid_might_as_well_be_absent(x, leave_one_out):
    score, group, valid = x
    kept = torch.ones_like(group, dtype=torch.bool) if valid is None else valid
    found = grpo(score, group, valid=valid, leave_one_out=leave_one_out)
    torch.testing.assert_close(found[kept], grpo(score[kept], group[kept], leave_one_out=leave_one_out))
    assert torch.equal(found[~kept], torch.zeros_like(found[~kept]))


@settings(max_examples=30)
@given(st.lists(st.integers(-3, 3), max_size=8), st.sampled_from([1, 10**14]))
def test_names_become_numbers(names, stretch):
    first = torch.tensor(names, dtype=torch.int64) * stretch
    second = first.flip(0)
    for index, expected in ((numbered(first)[0], reference.numbered(first.tolist())[0]), (pairs(first, second), None)):
        slow_index = reference.pairs(first.tolist(), second.tolist()) if expected is None else expected
        assert [[a == b for a in index.tolist()] for b in index.tolist()] == [[a == b for a in slow_index] for b in slow_index]
    index, count = numbered(first)
    assert all(0 <= i < count for i in index.tolist())
    assert count <= 4 * max(len(names), 1)


@pytest.mark.parametrize(
    ("names", "numbers", "count"),
    [
        ([], [], 0),
        ([7], [0], 1),
        ([99, 0, 99], [1, 0, 1], 2),
        ([5, 8], [0, 3], 4),
        ([1, 8], [0, 7], 8),
        ([0, 8], [0, 1], 2),
        ([9, 0], [1, 0], 2),
    ],
)
def test_names_that_lie_close_are_numbers_already_and_others_are_sorted(names, numbers, count):
    index, found = numbered(torch.tensor(names, dtype=torch.int64))
    assert (index.tolist(), found) == (numbers, count)


def test_a_gradient_reaches_the_scores():
    score = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    group = torch.tensor([0, 1, 0, 1, 0, 2])
    for scale in ("none", "group"):
        assert torch.autograd.gradcheck(lambda s, scale=scale: grpo(s, group, scale=scale)[:5], [score])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grpo(SCORE[:3], GROUP), r"grpo\(group\)"),
        (lambda: grpo(SCORE, GROUP, valid=GROUP[:2]), r"grpo\(valid\)"),
        (lambda: grpo(SCORE[:, None], GROUP[:, None]), r"grpo\(score\): expected \[B\]"),
        (lambda: opo(SCORE, GROUP[:2], GROUP), r"opo\(group\)"),
        (lambda: opo(SCORE, GROUP, GROUP[:2]), r"opo\(length\)"),
        (lambda: remax(SCORE, SCORE[:2]), r"remax\(baseline\)"),
        (lambda: remax(SCORE, SCORE, valid=GROUP[:2]), r"remax\(valid\)"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


@pytest.mark.parametrize("options", [{"scale": "bach"}, {"eps": -1.0}])
def test_a_wrong_option_is_refused(options):
    with pytest.raises(ConfigError, match=r"grpo\("):
        grpo(SCORE, GROUP, **options)
    with pytest.raises(ConfigError, match=next(iter(options))):
        GRPO(**options)


ESTIMATORS = [
    GRPO(),
    GRPO(scale="none"),
    GRPO(scale="batch", unbiased=False),
    GRPO(leave_one_out=True, eps=1e-4),
    RLOO(),
    OPO(),
]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_contract(estimator, group_size):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor, group_size=group_size).run()


def test_contract_of_remax():
    """A trajectory says nothing of greedy answers, so the test hands their scores in."""

    def advantage(trajectory, *, all_reduce=None):
        x = CreditInputs.of(trajectory)
        inputs = {name: getattr(x, name) for name in ("reward", "mask")}
        found, target = ReMax().of(CreditInputs(**inputs, baseline=trajectory.value[:, 0]), all_reduce=all_reduce)
        return type(GRPO()(trajectory))(advantage=found, target=target)

    AdvantageContract(advantage=advantage, as_array=torch.as_tensor).run()


MASK = torch.tensor([[True, False, True]] * 6 + [[False] * 3])
GIVEN = {"score": SCORE, "group": GROUP, "mask": MASK}


def test_by_name_rows_without_decisions_take_no_part():
    score, group, valid = GIVEN["score"], torch.tensor([7, -2, 7, -2, 7, 7, 7]), MASK.any(1)
    x = CreditInputs(score=score, group=group, mask=MASK, baseline=score.flip(0))
    options = {"unbiased": False, "eps": 0.5, "leave_one_out": True}
    lengths = MASK.sum(1)
    cases = [
        (GRPO(**options), grpo(score, group, valid=valid, **options)),
        (GRPO(scale="batch"), grpo(score, group, valid=valid, scale="batch")),
        (RLOO(), rloo(score, group, valid=valid)),
        (OPO(), opo(score, group, lengths, valid=valid)),
        (ReMax(), remax(score, score.flip(0), valid=valid)),
    ]
    for estimator, expected in cases:
        advantage, target = estimator.of(x)
        torch.testing.assert_close(advantage, torch.where(MASK, expected[:, None], 0.0))
        assert target is None


def test_by_name_the_score_is_the_sum_of_rewards_unless_given():
    reward = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    group = torch.tensor([0, 0])
    advantage, _ = GRPO(scale="none").of(CreditInputs(reward=reward, group=group))
    assert advantage.tolist() == [[-2.0, -2.0], [2.0, 2.0]]
    advantage, _ = GRPO(scale="none").of(CreditInputs(reward=reward, group=group, score=torch.tensor([4.0, 2.0])))
    assert advantage.tolist() == [[1.0, 1.0], [-1.0, -1.0]]


@pytest.mark.parametrize(("estimator", "missing"), [(GRPO(), "group"), (RLOO(), "group"), (OPO(), "group"), (ReMax(), "baseline")])
def test_what_is_missing_is_named(estimator, missing):
    with pytest.raises(ShapeError, match=rf"{type(estimator).__name__}\({missing}\): expected a tensor, found None"):
        estimator.of(CreditInputs(reward=torch.ones(2, 3)))
    with pytest.raises(ShapeError, match=rf"{type(estimator).__name__}\(reward\)"):
        estimator.of(CreditInputs(group=torch.zeros(2), baseline=torch.zeros(2)))


def test_two_names_of_a_row_are_never_mistaken_for_two_others():
    """(0, 1) and (2, 0) would share 0 / 2 + 1 = 2 / 2 + 0."""
    found = pairs(torch.tensor([0, 2, 0, 1]), torch.tensor([1, 0, 1, 1])).tolist()
    assert found[0] == found[2]
    assert len(set(found)) == 3
