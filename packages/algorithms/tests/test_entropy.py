import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.losses.entropy import entropy_loss
from rlinf.core.errors import ShapeError


def test_by_hand():
    output = entropy_loss(torch.tensor([[1.0, 2.0, 50.0]]), torch.tensor([[True, True, False]]))
    assert (output.total.item(), output.weight.item(), output.metrics["entropy"].mean) == (-3.0, 2.0, 1.5)


@settings(max_examples=30)
@given(st.tuples(*[st.integers(1, 3)] * 4), st.integers(2, 4), st.integers(0, 10_000))
def test_equals_the_reference(shape, axes, seed):
    random = np.random.default_rng(seed)
    entropy = torch.tensor(random.normal(size=shape[:axes]), requires_grad=True)
    mask = torch.tensor(random.random(shape[:2]) < 0.7)
    output = entropy_loss(entropy, mask)
    total, weight = reference.entropy_loss(entropy.tolist(), mask.tolist())
    assert (output.total.item(), output.weight.item()) == (pytest.approx(total, abs=1e-12), weight)
    output.total.backward()
    elements = entropy[0, 0].numel()
    torch.testing.assert_close(entropy.grad, -mask.reshape(*mask.shape, *[1] * (axes - 2)).expand_as(entropy).double() / elements)


def test_garbage_where_masked():
    entropy = torch.tensor([[1.0, float("nan")]], requires_grad=True)
    output = entropy_loss(entropy, torch.tensor([[True, False]]))
    output.total.backward()
    assert (output.total.item(), entropy.grad.tolist()) == (-1.0, [[-1.0, 0.0]])


def test_wrong_shape():
    with pytest.raises(ShapeError, match=r"entropy_loss\(entropy\): expected leading sizes"):
        entropy_loss(torch.ones(2, 3), torch.ones(2, 2, dtype=torch.bool))
