import math
from dataclasses import replace

import pytest
import reference
import torch
from float_types import FLOATS
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.per_decision import OnPolicyDistillation, Raw, opd_advantage, raw
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_opd_by_hand():
    """The teacher finds the first token likelier than the student does: it is praised."""
    student, teacher = torch.tensor([[-2.0, -1.0, math.nan]]), torch.tensor([[-0.5, -3.0, -math.inf]])
    assert opd_advantage(student, teacher, mask=MASK[:1]).tolist() == [[1.5, -2.0, 0.0]]
    assert opd_advantage(student[:, :2], teacher[:, :2]).tolist() == [[1.5, -2.0]]


def test_raw_by_hand():
    reward = torch.tensor([[1.0, 2.0, math.nan], [6.0, 9.0, 9.0]])
    assert raw(reward, MASK).tolist() == [[1.0, 2.0, 0.0], [6.0, 0.0, 0.0]]
    # 1, 2, 6: mean 3, squares 14
    centred = torch.tensor([[-2.0, -1.0, 0.0], [3.0, 0.0, 0.0]])
    torch.testing.assert_close(raw(reward, MASK, normalize=True), centred / (7**0.5 + 1e-5))
    torch.testing.assert_close(raw(reward, MASK, normalize=True, unbiased=False, eps=1.0), centred / ((14 / 3) ** 0.5 + 1.0))


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 5), FLOATS, st.booleans())
def test_equal_their_specifications(seed, rows, columns, dtype, flag):
    torch.manual_seed(seed)
    one, two = (torch.randn(rows, columns, dtype=torch.float64).to(dtype) for _ in range(2))
    mask = torch.rand(rows, columns) < 0.7
    pairs = [(opd_advantage(one, two), reference.opd_advantage(one.tolist(), two.tolist()))]
    one[~mask], two[~mask] = math.nan, -math.inf
    before = one.clone(), two.clone()
    pairs.append((opd_advantage(one, two, mask=mask), reference.opd_advantage(one.tolist(), two.tolist(), mask=mask.tolist())))
    options = {"normalize": flag, "unbiased": seed % 2 == 0, "eps": 1e-3}
    pairs.append((raw(one, mask, **options), reference.raw(one.tolist(), mask.tolist(), **options)))
    for found, expected in pairs:
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert torch.equal(one.nan_to_num(9.0), before[0].nan_to_num(9.0))
    assert torch.equal(two, before[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: opd_advantage(torch.ones(2, 3), torch.ones(2, 2)), r"opd_advantage\(logprob_teacher\)"),
        (lambda: opd_advantage(torch.ones(2, 2), torch.ones(2, 2), mask=MASK), r"opd_advantage\(mask\)"),
        (lambda: raw(torch.ones(2, 2), MASK), r"raw\(mask\)"),
        (
            lambda: OnPolicyDistillation().of(CreditInputs(logprob=torch.ones(2, 2))),
            r"OnPolicyDistillation\(logprob_ref\).*teacher",
        ),
        (lambda: Raw().of(CreditInputs(mask=MASK)), r"Raw\(reward\)"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_an_epsilon_of_zero_is_refused():
    with pytest.raises(ConfigError, match="eps"):
        Raw(eps=0.0)


@pytest.mark.parametrize("estimator", [Raw(), Raw(normalize_advantages=True)])
def test_contract_of_raw(estimator):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor).run()


def test_contract_of_opd():
    def advantage(trajectory, *, all_reduce=None):
        taught = replace(trajectory, reference=trajectory.action[:, :, 0, 0] - 1.0)
        return OnPolicyDistillation()(taught, all_reduce=all_reduce)

    AdvantageContract(advantage=advantage, as_array=torch.as_tensor).run()


def test_by_name():
    torch.manual_seed(0)
    elements, teacher, reward = torch.randn(2, 3, 2), torch.randn(2, 3), torch.randn(2, 3)
    found, target = OnPolicyDistillation().of(CreditInputs(logprob=elements, logprob_ref=teacher, mask=MASK))
    torch.testing.assert_close(found, torch.where(MASK, teacher - elements.sum(2), 0.0))
    assert target is None
    inputs = CreditInputs(reward=reward, mask=MASK)
    found, target = Raw(normalize_advantages=True, eps=0.5).normalized(inputs, all_reduce=lambda x: x * 2)
    torch.testing.assert_close(found, raw(reward, MASK, lambda x: x * 2, normalize=True, eps=0.5))
    assert target is None
    assert torch.equal(Raw().of(CreditInputs(reward=reward))[0], reward)
