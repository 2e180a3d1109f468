"""Log-probabilities of tokens from hidden states: the last layer and its softmax at once, logits of a few rows at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rlinf.algorithms.checks import expect_shape
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.logits.categorical import Categorical, Upstream, differentiate, indices, observe
from rlinf.core.errors import ShapeError

HELD: Final = 2**26
"""Logits up to which they are all held (¼ GiB in float32), which saves the matrix product that computes them again."""
CHUNK: Final = 2**24
"""Logits of a chunk of more: rows enough for a matrix product at full speed."""


def logprob_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The log-probability of each token, without holding the logits of a large batch.

    log π(a) = z_a − log Σ_v exp z_v,   z = (W h + b) / temperature

    Logits are computed for a few rows at a time, and once more for the gradient: one matrix product more than with all of them
    in memory, which is how it is done where they are few. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models"
    (2024), arXiv:2411.09009, here without its kernels and without leaving out small gradients.

    Args:
        hidden: `[..., H]`, in any layout.
        weight: `[V, H]` of the last layer, in the type of `hidden`.
        tokens: `[...]`, ids in [0, V); or `[..., K]`, several of each distribution.
        bias: `[V]` of the last layer, or None.
        temperature: what logits are divided by, above 0.
        top_k: how many tokens may be chosen, the likeliest (and those that equal the last of them); None for all.
        chunk: rows at a time; None holds up to 2²⁶ logits at once, and of more chooses chunks.

    Returns:
        Shape of `tokens`, float32 or finer; −∞ where a token can't be chosen. Differentiable once, in `hidden`, `weight`, `bias`.

    Raises:
        ConfigError: a hyper-parameter is out of range.
        ShapeError: sizes disagree; the message names the argument.
    """
    head = Categorical("logprob_from_hidden", temperature, top_k, chunk)
    return _evaluate(head, hidden, weight, tokens, bias, with_entropy=False)[0]


def logprob_and_entropy_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`logprob_from_hidden`, and the entropies of the same distributions for little more.

    log π(a) = z_a − log Σ_v exp z_v,   H = −Σ_v π(v) log π(v),   z = (W h + b) / temperature

    Args:
        hidden: `[..., H]`, in any layout.
        weight: `[V, H]` of the last layer, in the type of `hidden`.
        tokens: `[...]`, ids in [0, V); or `[..., K]`, several of each distribution.
        bias: `[V]` of the last layer, or None.
        temperature: what logits are divided by, above 0.
        top_k: how many tokens may be chosen, the likeliest (and those that equal the last of them); None for all.
        chunk: rows at a time; None holds up to 2²⁶ logits at once, and of more chooses chunks.

    Returns:
        Log-probabilities in the shape of `tokens` and entropies `[...]` in nats, float32 or finer. Differentiable once.

    Raises:
        ConfigError: a hyper-parameter is out of range.
        ShapeError: sizes disagree; the message names the argument.
    """
    head = Categorical("logprob_and_entropy_from_hidden", temperature, top_k, chunk)
    logprob, entropy = _evaluate(head, hidden, weight, tokens, bias, with_entropy=True)
    assert entropy is not None
    return logprob, entropy


def _evaluate(
    head: Categorical, hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    if weight.dim() != 2:
        raise ShapeError(f"{head.place}(weight)", f"expected [V, H], found {tuple(weight.shape)}")
    expect_shape(f"{head.place}(hidden)", hidden, (*hidden.shape[:-1], weight.shape[1]))
    if bias is not None:
        expect_shape(f"{head.place}(bias)", bias, weight.shape[:1])
    leading = hidden.shape[:-1]
    index = indices(head, tokens, leading)
    flat = hidden.reshape(len(index), weight.shape[1])
    if head.chunk is None:
        numbers = HELD if len(flat) * len(weight) <= HELD else CHUNK
        head = replace(head, chunk=max(1, numbers // max(1, len(weight))))
    logprob, entropy = _FusedLinear.apply(flat, weight, bias, index, head, with_entropy)  # pyright: ignore[reportGeneralTypeIssues]
    return logprob.view(tokens.shape), None if entropy is None else entropy.view(leading)


class _FusedLinear(torch.autograd.Function):
    """As `Fused`, but what is computed again is the last layer; if all rows are one chunk, its logits are kept instead."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, head: Categorical, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        dtype = at_least_float32(hidden[:0]).dtype
        logprob = hidden.new_empty(tokens.shape, dtype=dtype)
        entropy = hidden.new_empty(len(hidden), dtype=dtype) if with_entropy else None
        slices, z = _slices(hidden, head), None
        for rows in slices:
            z = head.scaled(linear(hidden[rows], weight, bias))
            chosen, spread = observe(z, tokens[rows], with_entropy)
            if chosen is not None:
                logprob[rows] = chosen
            if entropy is not None and spread is not None:
                entropy[rows] = spread
        ctx.save_for_backward(hidden, weight, bias, tokens, entropy, z if len(slices) == 1 else None)
        ctx.set_materialize_grads(False)
        ctx.head = head
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, entropy, kept = ctx.saved_tensors
        head: Categorical = ctx.head
        if grads[0] is None and grads[1] is None:
            return (None,) * 6
        by_logprob, by_entropy = (None if g is None else g / head.temperature for g in grads)
        up = Upstream(tokens, by_logprob, entropy, by_entropy)
        by_hidden, by_weight, by_bias = (
            torch.zeros_like(x, dtype=dtype) if needed else None
            for x, dtype, needed in zip(
                (hidden, weight, bias),
                (hidden.dtype, *[at_least_float32(weight[:0]).dtype] * 2),
                ctx.needs_input_grad,
                strict=False,
            )
        )
        for rows in _slices(hidden, head):
            z = head.scaled(linear(hidden[rows], weight, bias)) if kept is None else kept
            by_logits, inputs = _by_logits(head, hidden[rows], z, up.of(rows))
            if by_hidden is not None:
                by_hidden[rows] = by_logits @ weight
            if by_weight is not None:
                _add_product(by_weight, by_logits.t(), inputs)
            if by_bias is not None:
                by_bias += by_logits.sum(0, dtype=by_bias.dtype)
        # Summed over chunks in float32: in bfloat16 small parts would be lost one by one.
        by_weight = None if by_weight is None else by_weight.to(weight.dtype)
        return by_hidden, by_weight, None if by_bias is None else by_bias.to(bias.dtype), None, None, None


def _slices(hidden: Tensor, head: Categorical) -> list[slice]:
    rows = head.chunk or len(hidden)
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


def _by_logits(head: Categorical, hidden: Tensor, z: Tensor, up: Upstream) -> tuple[Tensor, Tensor]:
    """The gradient by the last layer's output, and its input; both 0 in rows by which no loss depends."""
    out = torch.empty_like(z)
    differentiate(z, up, out)
    if head.top_k is not None:
        out.masked_fill_(z == -torch.inf, 0.0)
    idle = up.idle()
    return out.index_fill_(0, idle, 0.0).to(hidden.dtype), hidden.index_fill(0, idle, 0.0)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds a matrix product, in the type of the total."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
