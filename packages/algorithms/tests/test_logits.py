import math

import pytest
import reference
import torch
from held_bytes import HeldBytes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from rlinf.algorithms.logits.entropy import entropy_from_logits
from rlinf.algorithms.logits.linear import logprob_from_hidden
from rlinf.algorithms.logits.logprob import logprob_and_entropy_from_logits, logprob_from_logits
from rlinf.core.errors import ConfigError, ShapeError

CHUNKS = (None, 1, 3, 100)
sizes = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9))
temperatures = st.sampled_from([0.5, 1.0, 2.0])


def draw(shape, seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(shape, generator=random, dtype=torch.float64)
    return logits.to(dtype), torch.randint(shape[-1], shape[:-1], generator=random)


def as_tensor(rows, like):
    return torch.tensor(rows, dtype=torch.float64).reshape(like.shape)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_by_hand(chunk):
    """Odds of 1 to 2 to 5; at temperature 1/2 of 1 to 4 to 25."""
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log().expand(3, 3)
    tokens = torch.tensor([0, 1, 2])
    for temperature, p in ((1.0, [1 / 8, 2 / 8, 5 / 8]), (0.5, [1 / 30, 4 / 30, 25 / 30])):
        entropy = -sum(x * math.log(x) for x in p)
        logprob = logprob_from_logits(logits, tokens, temperature=temperature, chunk=chunk)
        torch.testing.assert_close(logprob.exp(), torch.tensor(p))
        both = logprob_and_entropy_from_logits(logits, tokens, temperature=temperature, chunk=chunk)
        torch.testing.assert_close(both, (logprob, torch.full((3,), entropy)))
        torch.testing.assert_close(entropy_from_logits(logits, temperature=temperature, chunk=chunk), both[1])


@pytest.mark.parametrize("chunk", CHUNKS)
def test_gradients_by_hand(chunk):
    """1 − p for the token, −p for the others; −p (log p + H), which is 0 where all are alike."""
    logits = torch.tensor([[1.0, 2.0, 5.0]]).log().requires_grad_()
    logprob_from_logits(logits, torch.tensor([1]), chunk=chunk).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1 / 8, 6 / 8, -5 / 8]]))
    logits = torch.zeros(1, 4, requires_grad=True)
    entropy_from_logits(logits, temperature=0.5, chunk=chunk).backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 4), atol=1e-6, rtol=0)


@settings(max_examples=40)
@given(sizes, st.integers(0, 10_000), temperatures, st.sampled_from(CHUNKS), st.sampled_from([None, 1, 2, 20]))
def test_equals_the_reference(shape, seed, temperature, chunk, top_k):
    logits, tokens = draw(shape, seed)
    before = logits.clone()
    options = {"temperature": temperature, "top_k": top_k}
    logprob, entropy = logprob_and_entropy_from_logits(logits, tokens, chunk=chunk, **options)
    expected = reference.logprob_and_entropy_from_logits(logits.tolist(), tokens.tolist(), **options)
    torch.testing.assert_close(logprob, as_tensor(expected[0], tokens))
    torch.testing.assert_close(entropy, as_tensor(expected[1], tokens))
    torch.testing.assert_close(logprob_from_logits(logits, tokens, chunk=chunk, **options), logprob)
    torch.testing.assert_close(entropy_from_logits(logits, chunk=chunk, **options), entropy)
    assert torch.equal(logits, before)


@settings(max_examples=30)
@given(sizes, st.integers(0, 10_000), temperatures, st.sampled_from(CHUNKS), st.booleans(), st.sampled_from([None, 2]))
def test_from_hidden_equals_the_reference(shape, seed, temperature, chunk, with_bias, top_k):
    hidden, _ = draw((*shape[:2], 3), seed)
    weight, _ = draw((shape[2], 3), seed + 1)
    bias = weight[:, 0] if with_bias else None
    _, tokens = draw(shape, seed)
    options = {"temperature": temperature, "top_k": top_k}
    logprob = logprob_from_hidden(hidden, weight, tokens, bias=bias, chunk=chunk, **options)
    lists = hidden.tolist(), weight.tolist(), tokens.tolist()
    expected = reference.logprob_from_hidden(*lists, bias=bias.tolist() if with_bias else None, **options)
    torch.testing.assert_close(logprob, as_tensor(expected, tokens))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("top_k", [None, 3])
def test_gradients_are_those_of_finite_differences(chunk, top_k):
    logits, tokens = draw((2, 3, 5), 0)
    logits.requires_grad_()
    tokens = logits.detach().topk(2, -1).indices[..., 1] if top_k else tokens
    options = {"temperature": 0.7, "chunk": chunk, "top_k": top_k}
    assert gradcheck(lambda x: logprob_from_logits(x, tokens, **options), logits)
    assert gradcheck(lambda x: entropy_from_logits(x, **options), logits)
    assert gradcheck(lambda x: logprob_and_entropy_from_logits(x, tokens, **options), logits)
    assert gradcheck(lambda x: logprob_and_entropy_from_logits(x, tokens, **options)[1], logits)


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("top_k", [None, 3])
def test_gradients_from_hidden_are_those_of_finite_differences(chunk, top_k):
    (hidden, _), (weight, _), (bias, _) = draw((2, 3, 2), 1), draw((5, 2), 2), draw((5,), 3)
    tokens = torch.nn.functional.linear(hidden, weight, bias).argmax(-1)
    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    options = {"temperature": 0.7, "chunk": chunk, "top_k": top_k}
    assert gradcheck(lambda h, w, b: logprob_from_hidden(h, w, tokens, bias=b, **options), inputs)
    assert gradcheck(lambda h, w: logprob_from_hidden(h, w, tokens, **options), inputs[:2])
    assert gradcheck(lambda w: logprob_from_hidden(hidden.detach(), w, tokens, **options), inputs[1])
    assert gradcheck(lambda h: logprob_from_hidden(h, weight.detach(), tokens, **options), hidden)


@pytest.mark.parametrize("allowed", [slice(2, 5), slice(4, 7), slice(-3, None), torch.tensor([4, 0, 3])])
@pytest.mark.parametrize("chunk", [None, 2])
def test_a_part_of_the_vocabulary(allowed, chunk):
    logits, _ = draw((2, 3, 7), 4)
    logits.requires_grad_()
    ids = list(range(7))[allowed] if isinstance(allowed, slice) else allowed.tolist()
    tokens = torch.tensor(ids).repeat(2, 1)
    logprob, entropy = logprob_and_entropy_from_logits(logits, tokens, allowed=allowed, top_k=2, chunk=chunk)
    lists = logits.tolist(), tokens.tolist()
    expected = reference.logprob_and_entropy_from_logits(*lists, allowed=ids, top_k=2)
    torch.testing.assert_close(logprob, as_tensor(expected[0], tokens))
    torch.testing.assert_close(entropy, as_tensor(expected[1], tokens))
    torch.testing.assert_close(entropy_from_logits(logits, allowed=allowed, top_k=2, chunk=chunk), entropy)
    outside = torch.tensor([v for v in range(7) if v not in ids])
    assert gradcheck(lambda x: logprob_from_logits(x, tokens, allowed=allowed, chunk=chunk), logits)
    for v in outside.tolist():
        assert (logprob_from_logits(logits, torch.full((2, 3), v), allowed=allowed, chunk=chunk) == -math.inf).all()
    entropy.sum().backward()
    assert (logits.grad[..., outside] == 0).all()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_logit_of_minus_infinity_gives_no_nan(chunk):
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]] * 2, requires_grad=True)
    logprob, entropy = logprob_and_entropy_from_logits(logits, torch.tensor([0, 2]), chunk=chunk)
    torch.testing.assert_close(entropy, torch.full((2,), math.log(2)))
    (logprob + 3 * entropy).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0, -0.5, 0], [-0.5, 0, 0.5, 0]]))
    assert logprob_from_logits(logits, torch.tensor([1, 1]), chunk=chunk).tolist() == [-math.inf] * 2


@pytest.mark.parametrize("chunk", [None, 1, 2, 100])
def test_rows_by_which_no_loss_depends_may_hold_anything(chunk):
    logits, tokens = draw((4, 5), 5)
    logits[1], logits[2] = math.nan, math.inf
    logits.requires_grad_()
    keep = torch.tensor([True, False, False, True])
    logprob, entropy = logprob_and_entropy_from_logits(logits, tokens, chunk=chunk)
    torch.where(keep, logprob + entropy, 0.0).sum().backward()
    assert (logits.grad[1:3] == 0).all()
    assert (logits.grad[[0, 3]] != 0).any(1).all()
    hidden, weight = draw((4, 3), 6)[0], draw((5, 3), 7)[0].requires_grad_()
    hidden[1] = math.nan
    hidden.requires_grad_()
    torch.where(keep, logprob_from_hidden(hidden, weight, tokens, chunk=chunk), 0.0).sum().backward()
    assert (hidden.grad[1:3] == 0).all()
    assert weight.grad.isfinite().all()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("chunk", CHUNKS)
def test_several_tokens_of_one_distribution(chunk):
    logits, _ = draw((2, 3, 5), 8)
    logits.requires_grad_()
    every = torch.arange(5).expand(2, 3, 5)
    logprob = logprob_from_logits(logits, every, chunk=chunk)
    torch.testing.assert_close(logprob, torch.log_softmax(logits, -1))
    assert gradcheck(lambda x: logprob_from_logits(x, every, chunk=chunk), logits)
    hidden, weight = draw((2, 3, 4), 9)[0], draw((5, 4), 10)[0]
    torch.testing.assert_close(logprob_from_hidden(hidden, weight, every, chunk=chunk), torch.log_softmax(hidden @ weight.t(), -1))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(
    "view", [lambda x: x[:, :-1], lambda x: x.transpose(0, 1), lambda x: x.flip(0)[::2], lambda x: x[:, 0], lambda x: x[0, 0]]
)
def test_a_layout_in_memory_does_not_matter(chunk, view):
    logits, _ = draw((3, 4, 6), 11)
    logits.requires_grad_()
    part = view(logits)
    tokens = torch.zeros(part.shape[:-1], dtype=torch.int32)
    ours = logprob_and_entropy_from_logits(part, tokens, chunk=chunk)
    copied = logprob_and_entropy_from_logits(part.clone(memory_format=torch.contiguous_format), tokens, chunk=chunk)
    torch.testing.assert_close(ours, copied)
    grads = [torch.autograd.grad(sum(x.cos().sum() for x in both), logits)[0] for both in (ours, copied)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_computed_in_single(dtype, chunk):
    logits, tokens = draw((3, 4, 50), 12, dtype)
    logits.requires_grad_()
    wide = logits.detach().double().requires_grad_()
    both = logprob_and_entropy_from_logits(logits, tokens, temperature=0.7, chunk=chunk)
    exact = logprob_and_entropy_from_logits(wide, tokens, temperature=0.7, chunk=chunk)
    for x, y in zip(both, exact, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y.float())
    sum(x.sum() for x in both).backward()
    sum(x.sum() for x in exact).backward()
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad, wide.grad.to(dtype), atol=1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_from_hidden_in_half_precision(dtype):
    hidden, weight, bias = draw((6, 8), 13, dtype)[0], draw((11, 8), 14, dtype)[0], draw((11,), 15, dtype)[0]
    tokens = torch.arange(6)
    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    logprob_from_hidden(inputs[0], inputs[1], tokens, bias=inputs[2], chunk=4).sum().backward()
    logprob_from_hidden(wide[0], wide[1], tokens, bias=wide[2], chunk=4).sum().backward()
    for x, y in zip(inputs, wide, strict=True):
        assert x.grad.dtype == dtype
        assert (x.grad.double() - y.grad).norm() < (0.02 if dtype == torch.bfloat16 else 1e-5) * y.grad.norm()


@pytest.mark.parametrize("chunk", [None, 1])
def test_nothing_gives_nothing(chunk):
    logits = torch.zeros(0, 4, 5, requires_grad=True)
    tokens = torch.zeros(0, 4, dtype=torch.long)
    logprob, entropy = logprob_and_entropy_from_logits(logits, tokens, chunk=chunk)
    (logprob.sum() + entropy.sum()).backward()
    assert logprob.shape == entropy.shape == (0, 4)
    assert logits.grad.shape == (0, 4, 5)
    assert logprob_from_hidden(logits, torch.zeros(3, 5), tokens, chunk=chunk).shape == (0, 4)


def peak(function, *inputs):
    """The most that was held beside the inputs, forward and backward."""
    with HeldBytes() as held:
        out = function(*inputs)
        torch.autograd.backward([x.sum() for x in (out if isinstance(out, tuple) else (out,))])
        del out
    return held.most


def test_the_measure_of_memory_sees_copies():
    x = torch.zeros(1000, requires_grad=True)
    assert peak(lambda x: x.exp().exp(), x) >= 2 * x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_beside_the_logits_there_is_one_gradient_and_little_else(dtype):
    logits, tokens = torch.zeros(4, 64, 500, dtype=dtype).requires_grad_(), torch.zeros(4, 64, dtype=torch.long)
    little = 0.15 * logits.nbytes
    for function in (
        lambda x: logprob_from_logits(x, tokens, chunk=2, temperature=0.5),
        lambda x: entropy_from_logits(x, chunk=2),
        lambda x: logprob_and_entropy_from_logits(x, tokens, chunk=2, top_k=5),
    ):
        assert peak(function, logits) <= logits.nbytes + little
    with torch.no_grad(), HeldBytes() as held:
        logprob_and_entropy_from_logits(logits[:, 1:], tokens[:, 1:], chunk=2)
    assert held.most <= little


def test_large_logits_are_taken_in_chunks_by_themselves():
    logits, tokens = torch.zeros(2**14, 2**10, requires_grad=True), torch.zeros(2**14, dtype=torch.long)
    assert peak(lambda x: logprob_from_logits(x, tokens), logits) <= 1.3 * logits.nbytes


def test_logits_from_hidden_are_never_all_there():
    hidden, weight = torch.zeros(256, 8, requires_grad=True), torch.zeros(500, 8, requires_grad=True)
    tokens = torch.zeros(256, dtype=torch.long)
    whole = 256 * 500 * 4
    assert peak(lambda h, w: logprob_from_hidden(h, w, tokens, chunk=4), hidden, weight) < 0.25 * whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"logprob_from_logits\(temperature\): expected more than 0, found 0"),
        ({"top_k": 0}, r"logprob_from_logits\(top_k\): expected at least 1, found 0"),
        ({"chunk": 0}, r"logprob_from_logits\(chunk\): expected at least 1, found 0"),
        ({"allowed": slice(3, 3)}, r"logprob_from_logits\(allowed\): expected a slice that holds tokens"),
        ({"allowed": slice(0, 4, 2)}, r"logprob_from_logits\(allowed\): expected a slice that holds tokens, with step 1"),
        ({"allowed": torch.tensor([], dtype=torch.long)}, r"logprob_from_logits\(allowed\): expected ids \[M\] with M ≥ 1"),
        ({"allowed": torch.tensor([[1]])}, r"logprob_from_logits\(allowed\): expected ids \[M\] with M ≥ 1"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        logprob_from_logits(torch.zeros(2, 5), torch.zeros(2, dtype=torch.long), **options)


def test_a_wrong_shape_names_the_argument():
    logits, hidden, weight = torch.zeros(2, 3, 5), torch.zeros(2, 3, 4), torch.zeros(5, 4)
    for tokens in (torch.zeros(2), torch.zeros(3, 3), torch.zeros(2, 2, 5), torch.zeros(2, 3, 1, 1)):
        with pytest.raises(ShapeError, match=r"logprob_from_logits\(tokens\): expected shape \(2, 3\)"):
            logprob_from_logits(logits, tokens.long())
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"logprob_from_hidden\(hidden\): expected shape \(2, 3, 6\)"):
        logprob_from_hidden(hidden, torch.zeros(5, 6), tokens)
    with pytest.raises(ShapeError, match=r"logprob_from_hidden\(weight\): expected \[V, H\]"):
        logprob_from_hidden(hidden, torch.zeros(5), tokens)
    with pytest.raises(ShapeError, match=r"logprob_from_hidden\(bias\): expected shape \(5,\)"):
        logprob_from_hidden(hidden, weight, tokens, bias=torch.zeros(4))


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_token_beyond_the_top_k_gets_no_gradient_itself(chunk):
    """As autograd has it for logits that are masked before the softmax: the others move, the excluded one doesn't."""
    hidden, weight = draw((3, 4), 21)[0], draw((6, 4), 22)[0]
    logits = (hidden @ weight.t()).requires_grad_()
    tokens = logits.detach().argmin(-1)
    masked = logits.masked_fill(logits < logits.topk(2, -1).values[..., -1:], -math.inf)
    (expected,) = torch.autograd.grad(masked.log_softmax(-1).gather(-1, tokens[..., None]).sum(), logits)
    (found,) = torch.autograd.grad(logprob_from_logits(logits, tokens, top_k=2, chunk=chunk).sum(), logits)
    torch.testing.assert_close(found, expected)
    assert (found.gather(-1, tokens[..., None]) == 0).all()
    hidden.requires_grad_()
    logprob_from_hidden(hidden, weight, tokens, top_k=2, chunk=chunk).sum().backward()
    torch.testing.assert_close(hidden.grad, expected @ weight)


@pytest.mark.parametrize("token", [-100, 5])
def test_an_id_outside_the_vocabulary_is_refused(token):
    tokens = torch.tensor([[0, token, 4]])
    message = rf"\(tokens\): expected ids in \[0, 5\), found {token}\. Give positions that are masked any id"
    with pytest.raises(ShapeError, match="logprob_from_logits" + message):
        logprob_from_logits(torch.zeros(1, 3, 5), tokens)
    with pytest.raises(ShapeError, match="logprob_from_hidden" + message):
        logprob_from_hidden(torch.zeros(1, 3, 2), torch.zeros(5, 2), tokens)
