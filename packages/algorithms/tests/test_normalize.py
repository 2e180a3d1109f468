import math

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.normalize import normalize_advantages
from rlinf.algorithms.advantages.returns import GAE
from rlinf.algorithms.compat import calculate_adv_and_returns
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.registry import ADVANTAGES
from rlinf.core.testing.advantage import AdvantageContract

# group 7 has 1, 2, 3, 6 (mean 3, variance 3.5); group -2 has 10, 20 (mean 15, variance 25)
ADVANTAGE = torch.tensor([[1.0, 2.0], [10.0, 99.0], [3.0, 6.0], [20.0, -99.0]])
MASK = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
GROUP = torch.tensor([7, -2, 7, -2])
PARAMS = {"grpo_video": {"advantage_mode": "frame"}}
OURS = sorted({*ADVANTAGES.names()} - {"remax", "opd", "optimal_token_baseline"})
"""Those that need nothing which a trajectory of the examiner lacks."""


def test_over_groups_by_hand():
    expected = torch.tensor([[-2.0, -1.0], [-1.0, 0.0], [0.0, 3.0], [1.0, 0.0]]) / torch.tensor(
        [[3.5**0.5], [1.0], [3.5**0.5], [1.0]]
    )
    torch.testing.assert_close(normalize_advantages(ADVANTAGE, MASK, over="group", group=GROUP), expected)
    unbiased = normalize_advantages(ADVANTAGE, MASK, over="group", group=GROUP, unbiased=True)
    torch.testing.assert_close(unbiased[1, 0].item(), -5 / 50**0.5)
    wide = normalize_advantages(ADVANTAGE, MASK, over="group", group=GROUP, eps=1.0)
    torch.testing.assert_close(wide[3, 0].item(), 5 / 6)


def test_over_the_batch_by_hand():
    """1, 2, 3, 6, 10, 20: mean 7, squares 36 + 25 + 16 + 1 + 9 + 169 = 256."""
    expected = torch.where(MASK, (ADVANTAGE - 7.0) / (256 / 6) ** 0.5, 0.0)
    torch.testing.assert_close(normalize_advantages(ADVANTAGE, MASK), expected)
    twice = normalize_advantages(ADVANTAGE, MASK, lambda x: 2 * x, over="batch")
    torch.testing.assert_close(twice, expected)


def test_over_nothing():
    assert torch.equal(normalize_advantages(ADVANTAGE, MASK, over="none"), torch.where(MASK, ADVANTAGE, 0.0))


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    FLOATS,
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    st.fixed_dictionaries(
        {"over": st.sampled_from(["none", "batch", "group"]), "unbiased": st.booleans(), "eps": st.sampled_from([1e-8, 0.1])}
    ),
)
def test_equals_its_specification(seed, dtype, share, options):
    torch.manual_seed(seed)
    x, mask = (torch.randn(5, 4, dtype=torch.float64) + 2.0).to(dtype), torch.rand(5, 4) < share
    x[~mask] = math.nan
    before, group = x.clone(), torch.tensor([3, -1, 3, 10**12, -1])
    found = normalize_advantages(x, mask, group=group, **options)
    expected = reference.normalize_advantages(x.tolist(), mask.tolist(), group=group.tolist(), **options)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0))


@pytest.mark.parametrize("over", ["batch", "group"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6 + 0.1])
def test_what_agrees_gives_exactly_zero(over, value):
    found = normalize_advantages(torch.full((3, 3), value), torch.ones(3, 3), over=over, group=torch.zeros(3, dtype=torch.int64))
    assert torch.equal(found, torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"over": "goup"}, ConfigError, r"normalize_advantages\(over\): expected one of none, batch, group, found 'goup'. Did you"),
        ({"eps": 0.0}, ConfigError, r"normalize_advantages\(eps\)"),
        ({"over": "group"}, ShapeError, r"normalize_advantages\(group\): expected a tensor, found None"),
        ({"over": "group", "group": GROUP.float()}, ShapeError, r"normalize_advantages\(group\): expected integers"),
        ({"over": "group", "group": GROUP[:2]}, ShapeError, r"normalize_advantages\(group\)"),
        ({"mask": MASK[:2]}, ShapeError, r"normalize_advantages\(mask\)"),
    ],
)
def test_what_is_wrong_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        normalize_advantages(ADVANTAGE, **({"mask": MASK} | changes))


@pytest.mark.parametrize("over", ["none", "batch", "group"])
@pytest.mark.parametrize("name", OURS)
def test_every_advantage_by_name_can_be_normalised(name, over):
    """What it says is what `normalize_advantages` makes of what it says without it."""
    torch.manual_seed(0)
    rows, columns = 6, 3
    tensors = {
        "reward": torch.randn(rows, columns),
        "value": torch.randn(rows, columns + 1),
        "terminated": torch.zeros(rows, columns, dtype=torch.bool),
        "truncated": torch.zeros(rows, columns, dtype=torch.bool),
        "mask": torch.rand(rows, columns) < 0.9,
        "group": torch.tensor([0, 1, 0, 1, 1, 0]),
        "logprob": torch.zeros(rows, columns),
    }
    params = PARAMS.get(name, {})
    plain, target = calculate_adv_and_returns(adv_type=name, **tensors, **params, normalize_advantages="none")
    found, same = calculate_adv_and_returns(adv_type=name, **tensors, **params, normalize_advantages=over)
    how = {"unbiased": True, "eps": 1e-5} if name == "raw" else {}
    torch.testing.assert_close(found, normalize_advantages(plain, tensors["mask"], over=over, group=tensors["group"], **how))
    assert target is None if same is None else torch.equal(target, same)
    if over == "batch":
        short, _ = calculate_adv_and_returns(adv_type=name, **tensors, **params, normalize_advantages=True)
        assert torch.equal(short, found)


@pytest.mark.parametrize("name", ["gae", "grpo", "grpo_dynamic", "raw", "grpo_passk"])
@pytest.mark.parametrize("over", ["batch", "group"])
def test_the_contract_holds(name, over):
    estimator = ADVANTAGES.build(name, {"normalize_advantages": over}, place="algorithm")
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor, group_size=2, tolerance=1e-4).run()


def test_a_word_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match="normalize_advantages: expected one of none, batch, group, found 'goup'"):
        GAE(normalize_advantages="goup")
    with pytest.raises(
        ConfigError, match=r"algorithm\.normalize_advantages: expected true or false or 'none' or 'batch' or 'group', found 'goup'"
    ):
        ADVANTAGES.build("grpo", {"normalize_advantages": "goup"}, place="algorithm")
    with pytest.raises(ShapeError, match=r"GAE\(group\)"):
        GAE(normalize_advantages="group").normalized(
            CreditInputs(reward=ADVANTAGE, value=torch.zeros(4, 3), terminated=~MASK, truncated=~MASK)
        )
