import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.scan import scan_from_right
from rlinf.core.errors import ShapeError

# Shorter than one loop, several blocks, several levels of blocks, and lengths that no block divides.
lengths = st.one_of(st.integers(0, 40), st.sampled_from([64, 127, 128, 129, 130, 131, 257, 517]))


def draw(rows, length, seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, generator=random, dtype=torch.float64)
    decay = torch.rand(rows, length, generator=random, dtype=torch.float64)
    kind = torch.rand(rows, length, generator=random)
    return x.to(dtype), torch.where(kind < 0.2, 0.0, torch.where(kind < 0.4, 1.0, decay)).to(dtype)


def test_by_hand():
    x = torch.tensor([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.0, 1.0]])
    decay = torch.tensor([[0.5, 0.5, 0.5, 9.0], [0.5, 0.0, 1.0, 0.5]])
    assert scan_from_right(x, decay).tolist() == [[4.0, 6.0, 8.0, 8.0], [1.5, 1.0, 2.0, 1.0]]


@pytest.mark.parametrize("length", [5, 33, 70, 300])
def test_of_ones_counts_what_follows_up_to_an_end(length):
    decay = torch.ones(2, length)
    decay[1, length // 2] = 0.0
    counts = torch.arange(length, 0, -1.0)
    half = torch.cat([torch.arange(length // 2 + 1, 0, -1.0), torch.arange(length - length // 2 - 1, 0, -1.0)])
    assert torch.equal(scan_from_right(torch.ones(2, length), decay), torch.stack([counts, half]))


@settings(max_examples=40)
@given(st.integers(0, 5), lengths, st.integers(0, 10_000))
def test_equals_the_reference(rows, length, seed):
    x, decay = draw(rows, length, seed)
    before = x.clone(), decay.clone()
    y = scan_from_right(x, decay)
    expected = torch.tensor(reference.scan_from_right(x.tolist(), decay.tolist()), dtype=torch.float64)
    torch.testing.assert_close(y, expected.reshape(rows, length), rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before[0])
    assert torch.equal(decay, before[1])


def test_many_rows_are_scanned_like_few():
    """More numbers than one tile holds, so that rows are done some after the other."""
    x, decay = draw(2000, 600, 1, torch.float32)
    y = scan_from_right(x, decay)
    for row in (0, 999, 1999):
        torch.testing.assert_close(y[row : row + 1], scan_from_right(x[row : row + 1], decay[row : row + 1]))


@pytest.mark.parametrize("length", [7, 35, 150])
def test_a_layout_in_memory_does_not_matter(length):
    x, decay = draw(6, length, 3)
    expected = scan_from_right(x, decay)
    assert torch.equal(scan_from_right(x.t().contiguous().t(), decay), expected)
    assert torch.equal(scan_from_right(x, decay.t().contiguous().t()), expected)
    assert torch.equal(scan_from_right(x.repeat(1, 2)[::2, :length], decay[::2]), expected[::2])
    assert scan_from_right(x, decay).is_contiguous()


@pytest.mark.parametrize("length", [1, 6, 35])
def test_the_result_is_a_new_tensor(length):
    x, decay = draw(3, length, 4)
    before = x.clone()
    scan_from_right(x, decay).zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize("length", [20, 200])
def test_what_lies_beyond_an_end_never_matters_however_large(length):
    x, decay = torch.ones(1, length), torch.full((1, length), 0.5)
    decay[0, 9] = 0.0
    expected = scan_from_right(x, decay)[:, :10]
    x[0, 10:] = 1e30
    assert torch.equal(scan_from_right(x, decay)[:, :10], expected)


def test_a_product_of_decays_that_underflows_costs_nothing():
    y = scan_from_right(torch.ones(1, 4096), torch.full((1, 4096), 0.5))
    torch.testing.assert_close(y[:, :-30], torch.full((1, 4066), 2.0))


@pytest.mark.parametrize(("rows", "length"), [(2, 0), (0, 3), (2, 1), (2, 5), (1, 37)])
def test_gradients_of_both_orders_are_right(rows, length):
    x, decay = draw(rows, length, 5)
    x.requires_grad_()
    decay = (0.3 + 0.5 * decay).requires_grad_()
    assert torch.autograd.gradcheck(scan_from_right, (x, decay))
    if length < 30:
        assert torch.autograd.gradgradcheck(scan_from_right, (x, decay))


@pytest.mark.parametrize("length", [4, 37])
def test_no_gradient_crosses_an_end(length):
    x, decay = torch.ones(1, length, requires_grad=True), torch.full((1, length), 0.5)
    decay[0, 2] = 0.0
    scan_from_right(x, decay)[0, 0].backward()
    assert x.grad.tolist() == [[1.0, 0.5, 0.25] + [0.0] * (length - 3)]


def test_only_the_decay_may_need_a_gradient():
    decay = torch.tensor([[0.5, 0.25, 1.0]], requires_grad=True)
    scan_from_right(torch.tensor([[1.0, 2.0, 4.0]]), decay).sum().backward()
    assert decay.grad.tolist() == [[3.0, 6.0, 0.0]]


@pytest.mark.parametrize(
    ("x", "decay", "result"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.int64, torch.bool, torch.float32),
    ],
)
def test_arithmetic_is_at_least_in_single_precision(x, decay, result):
    y = scan_from_right(torch.ones(1, 400, dtype=x), torch.ones(1, 400, dtype=decay))
    assert y.dtype == result
    assert y[0, 0] == 400


def test_a_wrong_shape_names_the_argument():
    with pytest.raises(ShapeError, match=r"scan_from_right\(x\): expected \[B, T\], found \(3,\)"):
        scan_from_right(torch.ones(3), torch.ones(3))
    with pytest.raises(ShapeError, match=r"scan_from_right\(decay\): expected shape \(2, 3\), found \(2, 2\)"):
        scan_from_right(torch.ones(2, 3), torch.ones(2, 2))
