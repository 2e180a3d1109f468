import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import AGGREGATIONS, case, expect_same

from rlinf.algorithms.losses.policy.covariance import clip_cov, covariance, kl_cov
from rlinf.algorithms.losses.policy.ppo import ppo_clip
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

FLAT = st.builds(
    case, seed=st.integers(0, 10_000), rows=st.integers(1, 4), horizon=st.integers(1, 5), scale=st.sampled_from([0.0, 0.3, 3.0])
)
MASK = torch.tensor([[True, True, True, True, False]])
LOGPROB = torch.tensor([[-1.0, -2.0, -3.0, -4.0, math.nan]], dtype=torch.float64)
ADVANTAGE = torch.tensor([[3.0, 1.0, -1.0, -3.0, math.nan]], dtype=torch.float64)
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def tensors(ratios):
    """Log-probabilities −1 … −4 with advantages 3 … −3: the covariances are 4.5, 0.5, 0.5, 4.5."""
    old = LOGPROB - torch.tensor([[*ratios, 1.0]], dtype=torch.float64).log()
    return LOGPROB.clone().requires_grad_(), old, ADVANTAGE, MASK


def test_covariance_by_hand():
    assert covariance(LOGPROB, ADVANTAGE, MASK).tolist() == [[4.5, 0.5, 0.5, 4.5, 0.0]]
    assert covariance(LOGPROB + 1.0, ADVANTAGE, MASK).tolist() == [[4.5, 0.5, 0.5, 4.5, 0.0]]
    assert covariance(LOGPROB, ADVANTAGE, MASK & False).tolist() == [[0.0] * 5]


def test_kl_cov_by_hand():
    """Half of four decisions are held back: the first with |log 2|, the last with |log ½|."""
    x = tensors([2.0, 2.0, 0.5, 0.5])
    output = kl_cov(*x, share=0.5, kl_coef=3.0)
    output.total.backward()
    assert output.total.item() == pytest.approx(-6 - 2 + 0.5 + 1.5 + 6 * math.log(2))
    assert x[0].grad.tolist() == [pytest.approx([-6 + 3, -2, 0.5, 1.5 - 3, 0])]
    assert output.metrics["chosen_fraction"].mean == 0.5
    assert output.metrics["ratio"].mean == pytest.approx(1.25)
    assert output.metrics["policy_loss"].mean == pytest.approx(output.total.item() / 4)
    assert kl_cov(*x, share=0.0).metrics["chosen_fraction"].mean == 0.25
    assert kl_cov(*x).metrics["chosen_fraction"].mean == 0.25
    assert kl_cov(*x, share=0.74).metrics["chosen_fraction"].mean == 0.5
    assert kl_cov(*x, share=0.75).metrics["chosen_fraction"].mean == 0.75
    assert kl_cov(*x, share=1.0).total.item() == pytest.approx(-6 + 4 * math.log(2))


def test_clip_cov_by_hand():
    """The first and the last may be left out, but the first is held by its bound."""
    x = tensors([2.0, 1.0, 1.0, 1.1])
    output = clip_cov(*x, **CLIP, share=1.0)
    output.total.backward()
    assert output.total.item() == pytest.approx(-3.6 - 1 + 1)
    assert output.weight == 4
    assert x[0].grad.tolist() == [pytest.approx([0, -1, 1, 0, 0])]
    assert (output.metrics["chosen_fraction"].mean, output.metrics["clip_fraction"].mean) == (0.25, 0.25)
    assert output.metrics["policy_loss"].mean == pytest.approx(-0.9)
    untouched = ppo_clip(*x, **CLIP)
    for bounds in ({"low": 4.5}, {"high": 4.5}, {"high": 4.4}):
        assert clip_cov(*x, **CLIP, share=1.0, **bounds).total == untouched.total
    assert clip_cov(*x, **CLIP, share=1.0, low=0.4).metrics["chosen_fraction"].mean == 0.75


def test_clip_cov_draws():
    """One of the two is left out, each about as often as the other, and the same with the same seed."""
    x = tensors([1.0, 1.0, 1.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    totals = [clip_cov(*x, **CLIP, generator=generator).total.item() for _ in range(60)]
    assert set(totals) == {-3.0, 3.0}
    assert 15 < totals.count(3.0) < 45
    again = torch.Generator().manual_seed(0)
    assert totals == [clip_cov(*x, **CLIP, generator=again).total.item() for _ in range(60)]
    assert clip_cov(*x, **CLIP).metrics["chosen_fraction"].mean == 0.25


@settings(max_examples=30)
@given(FLAT, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 2.0]), st.sampled_from(AGGREGATIONS))
def test_what_the_reference_says(x, share, kl_coef, aggregation):
    logprob, old, _, advantage, mask = x.lists()
    inputs, lists = (x.logprob, x.logprob_old, x.advantage, x.mask), (logprob, old, advantage, mask)
    score = torch.tensor(reference.covariance(logprob, advantage, mask), dtype=torch.float64)
    torch.testing.assert_close(covariance(x.logprob, x.advantage, x.mask), score)
    gaps = score[x.mask].sort().values.diff()
    options = {"share": share, "kl_coef": kl_coef, "aggregation": aggregation}
    if (gaps > 1e-9).all():
        expect_same(kl_cov(*inputs, **options), reference.kl_cov(*lists, **options))
    options = {**CLIP, "low": 0.1, "high": 1.0, "aggregation": aggregation}
    expect_same(clip_cov(*inputs, **options, share=1.0), reference.clip_cov(*lists, **options))


@pytest.mark.parametrize("loss", [kl_cov, lambda *x: clip_cov(*x, **CLIP)])
def test_a_batch_without_decisions_weighs_nothing(loss):
    x = tensors([1.0] * 4)
    output = loss(*x[:3], MASK & False)
    assert (output.total.item(), output.weight.item()) == (0.0, 0.0)
    assert all(math.isnan(mean) for mean in means(output.metrics).values())


def test_wrong_shapes_and_parameters_are_named():
    x = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match=r"covariance\(logprob\): expected shape \(2, 3\)"):
        covariance(x[:1], x, x > 0)
    with pytest.raises(ShapeError, match=r"covariance\(advantage\): expected shape \(2, 3\)"):
        covariance(x, x[:1], x > 0)
    with pytest.raises(ShapeError, match=r"kl_cov\(logprob_old\)"):
        kl_cov(x, x[:1], x, x > 0)
    for name, bad in (("share", 1.1), ("share", -0.1), ("kl_coef", -1.0)):
        with pytest.raises(ConfigError, match=rf"{name}: expected "):
            kl_cov(x, x, x, x > 0, **{name: bad})
    with pytest.raises(ConfigError, match="share: expected "):
        clip_cov(x, x, x, x > 0, **CLIP, share=2.0)
    with pytest.raises(ConfigError, match="clip_ratio_low"):
        clip_cov(x, x, x, x > 0, clip_ratio_low=2.0, clip_ratio_high=0.2)
