import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.sft import sft_loss
from rlinf.algorithms.losses.terms import Aggregation
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import means

LOGPROB = torch.tensor([[math.log(0.5), math.log(0.25), 9.0]])
MEAN = torch.tensor([[-1.0, -2.0, 9.0]])
MASK = torch.tensor([[True, True, False]])


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 3 * math.log(2)),
        ({"dft": True}, 0.5 * math.log(2) + 0.25 * math.log(4)),
        ({"label_smoothing": 0.1, "logprob_mean": MEAN}, 0.9 * 3 * math.log(2) + 0.1 * 3.0),
        ({"label_smoothing": 1.0, "logprob_mean": MEAN}, 3.0),
        ({"aggregation": Aggregation("constant-length", 3)}, math.log(2)),
    ],
)
def test_by_hand(options, total):
    output = sft_loss(LOGPROB, MASK, **options)
    assert output.total.item() == pytest.approx(total)
    assert output.weight.item() == (1.0 if "aggregation" in options else 2.0)
    assert output.metrics["nll"].mean == pytest.approx(1.5 * math.log(2))
    assert list(means(output.metrics)) == ["sft_loss", "nll"]
    if "aggregation" not in options:
        assert output.metrics["sft_loss"].mean == pytest.approx(total / 2)


def test_agrees_with_the_cross_entropy_of_torch():
    """With and without label smoothing, from logits over nine tokens."""
    logits = torch.randn(2, 5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    log_p = logits.log_softmax(-1)
    logprob, logprob_mean = log_p.gather(-1, labels[..., None])[..., 0], log_p.mean(-1)
    for smoothing in (0.0, 0.1):
        expected = torch.nn.functional.cross_entropy(logits[mask], labels[mask], label_smoothing=smoothing)
        output = sft_loss(logprob, mask, label_smoothing=smoothing, logprob_mean=logprob_mean if smoothing else None)
        torch.testing.assert_close(output.total / output.weight, expected)


@settings(max_examples=40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
    st.sampled_from([("token-mean", None), ("seq-mean-token-mean", None), ("constant-length", 5)]),
    st.integers(0, 10_000),
)
def test_equals_the_reference(shape, smoothing, dft, mode, seed):
    random = np.random.default_rng(seed)
    logprob, logprob_mean = (torch.tensor(-np.abs(random.normal(size=shape))) for _ in range(2))
    mask = torch.tensor(random.random(shape) < 0.7)
    logprob_mean = logprob_mean if smoothing else None
    options = {"logprob_mean": logprob_mean, "label_smoothing": smoothing, "dft": dft, "aggregation": Aggregation(*mode)}
    output = sft_loss(logprob, mask, **options)
    mean = None if logprob_mean is None else logprob_mean.tolist()
    total, weight = reference.sft_loss(logprob.tolist(), mask.tolist(), mean, smoothing, dft, *mode)
    assert (output.total.item(), output.weight.item()) == (pytest.approx(total, abs=1e-12), weight)
    garbage = torch.where(mask, logprob, torch.nan).requires_grad_()
    mean = None if logprob_mean is None else torch.where(mask, logprob_mean, torch.inf)
    found = sft_loss(garbage, mask, **{**options, "logprob_mean": mean})
    found.total.backward()
    assert torch.equal(found.total, output.total)
    assert not garbage.grad[~mask].any()


def test_the_gradient_of_dft_is_that_of_the_probability():
    logprob = LOGPROB.clone().requires_grad_()
    sft_loss(logprob, MASK, dft=True).total.backward()
    torch.testing.assert_close(logprob.grad, torch.tensor([[-0.5, -0.25, 0.0]]))


def test_gradients():
    pair = -torch.rand(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert torch.autograd.gradcheck(
        lambda x: sft_loss(x[0], mask, logprob_mean=x[1], label_smoothing=0.2).total, [pair.requires_grad_()]
    )


def test_half_precision():
    output = sft_loss(torch.full((1, 1000), -1.0, dtype=torch.bfloat16), torch.ones(1, 1000, dtype=torch.bool))
    assert (output.total.item(), output.total.dtype) == (1000.0, torch.float32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label_smoothing": 0.1}, ShapeError, r"sft_loss\(logprob_mean\): expected a tensor with label smoothing .* found None"),
        ({"logprob_mean": MEAN}, ShapeError, r"sft_loss\(logprob_mean\): .* found a tensor"),
        ({"logprob_mean": MEAN[0], "label_smoothing": 0.1}, ShapeError, r"sft_loss\(logprob_mean\): expected shape"),
        ({"label_smoothing": 1.1}, ConfigError, r"label_smoothing: expected a value in \[0, 1\]"),
    ],
)
def test_what_is_wrong_is_named(options, error, message):
    with pytest.raises(error, match=message):
        sft_loss(LOGPROB, MASK, **options)
    with pytest.raises(ShapeError, match=r"sft_loss\(logprob\)"):
        sft_loss(LOGPROB[:, 1:], MASK)
