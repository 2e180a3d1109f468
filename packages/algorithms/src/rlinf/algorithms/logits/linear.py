"""Log-probabilities of tokens from hidden states: the last layer and its softmax at once, logits of a few rows at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.logits.categorical import Categorical, Upstream, differentiate, indices
from rlinf.core.errors import ShapeError

HELD: Final = 2**26
"""Logits up to which they are all held (¼ GiB in float32), which saves the matrix product that computes them again."""
CHUNK: Final = 2**24
"""Logits of a chunk of more: rows enough for a matrix product at full speed."""


@takes_tensors
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
    if weight.dim() != 2:
        raise ShapeError(f"{head.place}(weight)", f"expected [V, H], found {tuple(weight.shape)}")
    expect_shape(f"{head.place}(hidden)", hidden, (*hidden.shape[:-1], weight.shape[1]))
    if bias is not None:
        expect_shape(f"{head.place}(bias)", bias, weight.shape[:1])
    index = indices(head, tokens, (*hidden.shape[:-1], len(weight)))
    flat = hidden.reshape(len(index), weight.shape[1])
    if head.chunk is None:
        numbers = HELD if len(flat) * len(weight) <= HELD else CHUNK
        head = replace(head, chunk=max(1, numbers // max(1, len(weight))))
    logprob: Any = _FusedLinear.apply(flat, weight, bias, index, head)  # pyright: ignore[reportUnknownMemberType]
    return logprob.view(tokens.shape)


class _FusedLinear(torch.autograd.Function):
    """As `Fused`, but what is computed again is the last layer; if all rows are one chunk, its logits are kept instead."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, head: Categorical) -> Tensor:
        logprob = hidden.new_empty(tokens.shape, dtype=at_least_float32(hidden[:0]).dtype)
        slices, z = _slices(hidden, head), None
        for rows in slices:
            z = head.scaled(linear(hidden[rows], weight, bias))
            logprob[rows] = torch.log_softmax(z, -1).gather(1, tokens[rows])
        ctx.save_for_backward(hidden, weight, bias, tokens, z if len(slices) == 1 else None)
        ctx.head = head
        return logprob

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, kept = ctx.saved_tensors
        head: Categorical = ctx.head
        up = Upstream(tokens, grad / head.temperature, None, None)
        by_hidden, by_weight, by_bias = (
            torch.zeros_like(x, dtype=dtype) if needed else None
            # `needs_input_grad` also has entries for the tokens and for the head.
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
        return by_hidden, by_weight, None if by_bias is None else by_bias.to(bias.dtype), None, None


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
    # The input, too: the hidden state of padding may be NaN, and 0 · NaN is NaN in the gradient of the weight.
    return out.index_fill_(0, idle, 0.0).to(hidden.dtype), hidden.index_fill(0, idle, 0.0)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds a matrix product, in the type of the total."""
    # `addmm_` does not mix types.
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
