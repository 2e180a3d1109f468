import math

import numpy as np
import pytest
import torch

from rlinf.algorithms.advantages.estimator import CreditInputs
from rlinf.algorithms.advantages.off_policy import VTrace, vtrace
from rlinf.algorithms.advantages.returns import lambda_returns
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.advantage import AdvantageContract

REWARD = torch.tensor([[1.0, 2.0]])
VALUE = torch.tensor([[0.5, 1.0, 2.0]])
NO = torch.zeros(1, 2, dtype=torch.bool)


def at(log_ratio, **options):
    return vtrace(REWARD, VALUE, NO, options.pop("truncated", NO), torch.tensor([log_ratio]), gamma=0.5, **options)


@pytest.mark.parametrize(
    ("ratios", "options", "advantage", "target"),
    [
        # delta = [1 + 0.5 - 0.5, 2 + 1 - 1] = [1, 2]; v = V + delta + 0.5 c (v_next - V_next)
        ([1.0, 1.0], {}, [2.0, 2.0], [2.5, 3.0]),
        # rho = [0.5, 1], c = [0.5, 1], rho' as rho; v_1 = 3, v_0 = 0.5 + 0.5 + 0.25 * 2 = 1.5
        ([0.5, 3.0], {}, [1.0, 2.0], [1.5, 3.0]),
        # caps apart: v_1 = 1 + 2 * 2 = 5, v_0 = 0.5 + 2 * 1 + 0.5 * 1.5 * 4 = 5.5; rho' = 4, A_0 = 4 (1 + 2.5 - 0.5)
        ([4.0, 4.0], {"clip_rho": 2.0, "clip_c": 1.5, "clip_pg_rho": None}, [12.0, 8.0], [5.5, 5.0]),
        # lambda: v_0 = 0.5 + 1 + 0.5 * 0.5 * 2, A_0 = 1 + 0.5 (0.5 * 1 + 0.5 * 3) - 0.5
        ([1.0, 1.0], {"lam": 0.5}, [1.5, 2.0], [2.0, 3.0]),
        ([1.0, 1.0], {"truncated": torch.tensor([[True, False]])}, [1.0, 2.0], [1.5, 3.0]),
    ],
)
def test_by_hand(ratios, options, advantage, target):
    found = at([math.log(ratio) for ratio in ratios], **options)
    torch.testing.assert_close(found[0], torch.tensor([advantage]))
    torch.testing.assert_close(found[1], torch.tensor([target]))


def test_the_numbers_of_rlax():
    """vtrace_test.py of google-deepmind/rlax."""
    behaviour = np.array([[[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]])
    target = np.array([[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]])
    action = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])[:, :, None]
    log_pi, log_mu = (torch.tensor(x).log_softmax(-1).gather(-1, action)[..., 0] for x in (target, behaviour))
    reward = torch.tensor([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]], dtype=torch.float64)
    gamma = torch.tensor([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]], dtype=torch.float64)
    value = torch.tensor([[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]], dtype=torch.float64)
    no = torch.zeros(2, 4, dtype=torch.bool)
    advantage, found = vtrace(reward, value, no, no, log_pi - log_mu, gamma=gamma)
    error = [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]]
    gradient = [[-1.6155143, -3.4973226, 1.8670534, 50.316002], [1.4662433, 3.6116405, -8.3369283e-5, -13.54]]
    torch.testing.assert_close(found - value[:, :4], torch.tensor(error, dtype=torch.float64), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(advantage, torch.tensor(gradient, dtype=torch.float64), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_on_policy_targets_are_lambda_returns(lam):
    torch.manual_seed(0)
    reward, value, terminated = torch.randn(3, 6), torch.randn(3, 7), torch.rand(3, 6) < 0.2
    truncated = torch.rand(3, 6) < 0.2
    advantage, target = vtrace(reward, value, terminated, truncated, torch.zeros(3, 6), gamma=0.9, lam=lam)
    expected = lambda_returns(reward, value, terminated, truncated, gamma=0.9, lam=lam)
    torch.testing.assert_close(target, expected)
    torch.testing.assert_close(advantage, expected - value[:, :-1])


def test_a_ratio_that_overflows_is_capped_and_has_no_gradient():
    log_ratio = torch.tensor([[500.0, -500.0]], requires_grad=True)
    advantage, target = vtrace(REWARD, VALUE, NO, NO, log_ratio, gamma=0.5)
    torch.testing.assert_close(advantage, torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(target, torch.tensor([[1.5, 1.0]]))
    (advantage.sum() + target.sum()).backward()
    assert torch.equal(log_ratio.grad, torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["clip_rho", "clip_c", "clip_pg_rho"])
def test_a_cap_must_be_positive(name):
    with pytest.raises(ConfigError, match=rf"vtrace\({name}\)"):
        at([0.0, 0.0], **{name: 0.0})
    with pytest.raises(ConfigError, match=name):
        VTrace(**{name: 0.0})


@pytest.mark.parametrize("field", ["gamma", "lam"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_field_out_of_range_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        VTrace(**{field: value})


@pytest.mark.parametrize("estimator", [VTrace(), VTrace(gamma=1.0, lam=0.5, clip_rho=None, clip_c=2.0, clip_pg_rho=None)])
def test_contract(estimator):
    AdvantageContract(advantage=estimator, as_array=torch.as_tensor).run()


def test_by_name_the_ratio_is_that_of_the_joint_probability():
    torch.manual_seed(0)
    behaviour, proximal = torch.randn(2, 1, 2, 3, 2).unbind(0)
    fields = {"reward": REWARD, "value": VALUE, "terminated": NO, "truncated": NO}
    options = {"lam": 0.7, "clip_rho": 1.1, "clip_c": 0.9, "clip_pg_rho": 1.2}
    estimator = VTrace(gamma=0.5, **options)
    found = estimator.of(CreditInputs(**fields, logprob=behaviour, logprob_proximal=proximal))
    expected = at((proximal - behaviour).sum((2, 3))[0].tolist(), **options)
    torch.testing.assert_close(found, expected)
    on_policy = estimator.of(CreditInputs(**fields))
    torch.testing.assert_close(on_policy, at([0.0, 0.0], **options))
    with pytest.raises(ShapeError, match=r"VTrace\(logprob\)"):
        estimator.of(CreditInputs(**fields, logprob_proximal=proximal))
    with pytest.raises(ShapeError, match=r"VTrace\(logprob\)"):
        estimator.of(CreditInputs(**fields, logprob_proximal=proximal, logprob=behaviour[:, :1]))


def test_by_name_mask_and_value_next_are_heeded():
    mask, after = torch.tensor([[True, False]]), torch.tensor([[3.0, 4.0]])
    fields = {"reward": REWARD, "value": VALUE, "terminated": NO, "truncated": NO}
    advantage, target = VTrace(gamma=0.5).of(CreditInputs(**fields, mask=mask, value_next=after))
    torch.testing.assert_close(advantage, torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(target, torch.tensor([[2.5, 0.0]]))
