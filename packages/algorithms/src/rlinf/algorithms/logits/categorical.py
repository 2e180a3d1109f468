"""Log-probability and entropy of a softmax over a large vocabulary, a few rows at a time, with gradients written in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlinf.algorithms.elementwise import at_least_float32
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ShapeError

CHUNK_CPU: Final = 2**18
"""Numbers of a chunk for each thread, so that every pass over them but the first finds them in its cache."""
CHUNK_DEVICE: Final = 2**25
"""Numbers of a chunk elsewhere: enough to fill a device, few beside the logits of a batch."""
FLOOR: Final = -1e4
"""Stands for a log-probability of −∞, so that 0 · log 0 is 0; exp of it is 0 in every type."""


@dataclass(frozen=True, slots=True)
class Categorical:
    """How logits become a distribution, and how many rows of them at once."""

    place: str
    """The public function, for errors."""
    temperature: float = 1.0
    top_k: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        expect_range(f"{self.place}(temperature)", self.temperature, 0.0, float("inf"), open_low=True)
        for name, value in (("top_k", self.top_k), ("chunk", self.chunk)):
            expect_at_least(f"{self.place}({name})", value, 1)

    def rows(self, logits: Tensor) -> int:
        """How many rows of `[..., V]` to hold at once."""
        if self.chunk is not None:
            return self.chunk
        numbers = CHUNK_CPU * torch.get_num_threads() if logits.device.type == "cpu" else CHUNK_DEVICE
        return max(1, numbers // max(1, logits.shape[-1]))

    def scaled(self, logits: Tensor) -> Tensor:
        """Logits over temperature in float32 or finer, −∞ beyond the top k; the logits themselves if nothing changes."""
        z = at_least_float32(logits)
        z = z if self.temperature == 1.0 else z / self.temperature
        if self.top_k is None or self.top_k >= z.shape[-1]:
            return z
        # By value, not by index: tokens that equal the last of the k stay, as samplers keep them.
        return z.masked_fill(z < z.topk(self.top_k, dim=-1).values[..., -1:], -torch.inf)


@dataclass(frozen=True, slots=True)
class Upstream:
    """Derivatives of a loss by what was returned for some rows; the entropy goes with its own."""

    tokens: Tensor | None
    """`[N, K]`."""
    logprob: Tensor | None
    """`[N, K]`."""
    entropy: Tensor | None
    """`[N]`, the value."""
    grad_entropy: Tensor | None
    """`[N]`."""

    def of(self, rows: slice) -> Upstream:
        """Those of some rows."""
        parts = (self.tokens, self.logprob, self.entropy, self.grad_entropy)
        return Upstream(*(None if part is None else part[rows] for part in parts))

    def idle(self) -> Tensor:
        """The rows by which no loss depends: their gradient is 0 even where their logits are not numbers."""
        parts = [part if part.dim() == 2 else part[:, None] for part in (self.logprob, self.grad_entropy) if part is not None]
        return (torch.cat(parts, 1) == 0).all(1).nonzero()[:, 0]


def chunks(x: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Views `[n, V]` of `[..., V]`, n ≤ `rows`, each with the rows that they are; never a copy, whatever the layout."""
    done = 0
    for part in _flat(x):
        for start in range(0, len(part), rows):
            view = part[start : start + rows]
            yield slice(done, done + len(view)), view
            done += len(view)


def _flat(x: Tensor) -> Iterator[Tensor]:
    try:
        yield x.view(-1, x.shape[-1])
    # No view exists for this layout; parts of it have one, and a copy would be as large as the logits.
    except RuntimeError:
        for part in x.unbind(0):
            yield from _flat(part)


def observe(z: Tensor, tokens: Tensor | None, with_entropy: bool) -> tuple[Tensor | None, Tensor | None]:
    """Log-probabilities `[n, K]` of `tokens` and entropies `[n]` of scaled logits `[n, V]`."""
    logprobs = torch.log_softmax(z, -1)
    chosen = None if tokens is None else logprobs.gather(1, tokens)
    if not with_entropy:
        return chosen, None
    p = torch.softmax(z, -1)  # half the time of exp(logprobs)
    return chosen, -p.mul_(logprobs.clamp_(min=FLOOR)).sum(-1)


def differentiate(z: Tensor, up: Upstream, out: Tensor) -> None:
    """Writes the gradient by scaled logits into `out`: g (1ₜₒₖₑₙ − p) − h p (log p + H), for upstream g and h."""
    torch.softmax(z, -1, out=out)
    total = None if up.logprob is None else -up.logprob.sum(1, keepdim=True)
    if up.entropy is not None and up.grad_entropy is not None:
        weight = torch.log_softmax(z, -1).clamp_(min=FLOOR)
        weight.add_(up.entropy[:, None]).mul_(-up.grad_entropy[:, None])
        # Both gradients have p as a factor, which is multiplied in once.
        out.mul_(weight if total is None else weight.add_(total))
    elif total is not None:
        out.mul_(total)
    if up.tokens is not None and up.logprob is not None:
        out.scatter_add_(1, up.tokens, up.logprob)


class Fused(torch.autograd.Function):
    """Log-probabilities and entropies whose gradient is computed from the logits again, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor | None, head: Categorical, with_entropy: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Reads the logits once."""
        count, dtype = logits.shape[:-1].numel(), at_least_float32(logits[:0]).dtype
        logprob = None if tokens is None else logits.new_empty(tokens.shape, dtype=dtype)
        entropy = logits.new_empty(count, dtype=dtype) if with_entropy else None
        for rows, part in chunks(logits, head.rows(logits)):
            chosen, spread = observe(head.scaled(part), None if tokens is None else tokens[rows], with_entropy)
            if logprob is not None and chosen is not None:
                logprob[rows] = chosen
            if entropy is not None and spread is not None:
                entropy[rows] = spread
        ctx.save_for_backward(logits, tokens, entropy)
        # A result that no loss uses has no gradient; zeros in its place would cost a pass over the vocabulary.
        ctx.set_materialize_grads(False)
        ctx.head = head
        return logprob, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        """Reads the logits again, and writes their gradient."""
        logits, tokens, entropy = ctx.saved_tensors
        head: Categorical = ctx.head
        if grads[0] is None and grads[1] is None:
            return None, None, None, None
        by_logprob, by_entropy = (None if g is None else g / head.temperature for g in grads)
        up = Upstream(tokens, by_logprob, entropy, by_entropy)
        # Contiguous, whatever the layout of the logits, so that it has a flat view.
        grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        flat = grad.view(-1, logits.shape[-1])
        for rows, part in chunks(logits, head.rows(logits)):
            z = head.scaled(part)
            out = flat[rows] if flat.dtype == z.dtype else torch.empty_like(z)
            differentiate(z, up.of(rows), out)
            if head.top_k is not None:
                # A token beyond the top k has log-probability −∞ whatever its logit: what was added for it is taken back.
                out.masked_fill_(z == -torch.inf, 0.0)
            if out.dtype != flat.dtype:
                flat[rows] = out
        # Padding may hold NaN logits, and NaN · 0 is NaN.
        flat.index_fill_(0, up.idle(), 0.0)
        return grad, None, None, None


def evaluate(
    head: Categorical, logits: Tensor, tokens: Tensor | None, *, with_entropy: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Log-probabilities in the shape of `tokens` and entropies `[...]` of logits `[..., V]`."""
    index = None if tokens is None else indices(head, tokens, logits.shape)
    logprob, entropy = Fused.apply(logits, index, head, with_entropy)  # pyright: ignore[reportGeneralTypeIssues]
    return (
        None if logprob is None or tokens is None else logprob.view(tokens.shape),
        None if entropy is None else entropy.view(logits.shape[:-1]),
    )


def indices(head: Categorical, tokens: Tensor, shape: Sequence[int]) -> Tensor:
    """Tokens as `[N, K]`.

    Args:
        head: whose name is in messages.
        tokens: `[...]` or `[..., K]`.
        shape: of the logits, `[..., V]`.

    Raises:
        ShapeError: `tokens` is neither `[...]` nor `[..., K]`, or an id on the CPU is outside [0, V). A GPU would have to be waited
            for, and says so by itself.
    """
    *leading, size = shape
    several = tokens.dim() == len(leading) + 1
    if tuple(tokens.shape[: len(leading)]) != tuple(leading) or tokens.dim() > len(leading) + 1:
        raise ShapeError(f"{head.place}(tokens)", f"expected shape {tuple(leading)}, found {tuple(tokens.shape)}")
    if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= size:
            problem = f"expected ids in [0, {size}), found {low if low < 0 else high}"
            raise ShapeError(f"{head.place}(tokens)", problem, "Give positions that are masked any id, such as 0.")
    return tokens.long().reshape(math.prod(leading), tokens.shape[-1] if several else 1)
