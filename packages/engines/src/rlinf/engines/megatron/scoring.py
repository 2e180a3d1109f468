"""Log-probability, entropy and Σ π² of tokens where each rank has logits of a part of the vocabulary, which are never gathered."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor

_checkpointing: Any = torch.utils.checkpoint


def score_divided(
    hidden: Tensor, weight: Tensor, tokens: Tensor, *, group: Any, vocabulary: int, temperature: float, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probability of tokens; entropy and Σ π² of what they were drawn from, π = softmax(hidden · weightᵀ / temperature).

    z = logits / temperature,   log π(a) = z_a − log Σ_j e^{z_j},   H = −Σ_j π_j log π_j,   Σ_j π_j²; of each sum over j a rank has
    its part, and parts are added over ranks. Logits live for `chunk` rows only and are computed again on the way back. Shoeybi et
    al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019), §3, arXiv:1909.08053, for
    the log-probability.

    Args:
        hidden: `[n, W]`, the same on each rank, as is its gradient.
        weight: `[V / ranks, W]`, this rank's rows of the head.
        tokens: `[n]`, over the whole vocabulary.
        group: the ranks that share the vocabulary.
        vocabulary: V without what was added to divide it.
        temperature: that of the rollout.
        chunk: rows at a time.

    Returns:
        Three of `[n]`, float32 at least, the first two in nats, the last without a gradient; the same on each rank.
    """
    hidden = cast("Tensor", _Shared.apply(hidden, group))
    first = dist.get_rank(group) * len(weight)
    valid = max(0, min(len(weight), vocabulary - first))

    def scored(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = rows @ weight.T
        return cast("tuple[Tensor, Tensor, Tensor]", _DividedScore.apply(logits, chosen - first, valid, temperature, group))

    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    # Without a token there is one empty part, so that the result still has a graph.
    for start in range(0, max(len(tokens), 1), chunk):
        rows, chosen = hidden[start : start + chunk], tokens[start : start + chunk]
        parts.append(_checkpointing.checkpoint(scored, rows, chosen, use_reentrant=False, preserve_rng_state=False))
    logprob, entropy, squares = zip(*parts, strict=True)
    return torch.cat(logprob), torch.cat(entropy), torch.cat(squares)


class _Shared(torch.autograd.Function):
    """What each rank makes something else of: gradients are added."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        """The tensor."""
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The sum over ranks; of a copy, since what is not contiguous can't be added in place."""
        return _all_reduce(gradients[0].clone(memory_format=torch.contiguous_format), ctx.group), None


class _DividedScore(torch.autograd.Function):
    """∂ log π(a) / ∂z_j = 1[j = a] − π_j and ∂H / ∂z_j = −π_j (log π_j + H): each rank's columns need no other rank's."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, valid: int, temperature: float, group: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Three of `[n]` of logits `[n, V / ranks]`, of which the first `valid` exist, and tokens counted from this rank's."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        # A large number, and not −∞, so that 0 · log π stays 0.
        z[:, valid:] = torch.finfo(z.dtype).min / 4
        top = _all_reduce(z.amax(-1), group, dist.ReduceOp.MAX)
        log = z - top[:, None]
        log -= _all_reduce(log.exp().sum(-1), group).log()[:, None]
        own = (tokens >= 0) & (tokens < valid)
        held = torch.where(own, tokens, 0)
        chosen = torch.where(own, log.gather(-1, held[:, None]).squeeze(-1), 0.0)
        probability = log.exp()
        minus = (probability * log).sum(-1)
        # In place, as a further copy of the logits would be the most that is ever held.
        squares = probability.square_().sum(-1)
        logprob, entropy, squares = _all_reduce(torch.stack([chosen, -minus, squares]), group)
        ctx.mark_non_differentiable(squares)
        ctx.save_for_backward(log, entropy, held, own)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        return logprob, entropy, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """That of this rank's logits."""
        by_logprob, by_entropy, _ = gradients
        log, entropy, held, own = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        probability = log.exp()
        gradient = -probability * (by_logprob[:, None] + by_entropy[:, None] * (log + entropy[:, None]))
        gradient.scatter_add_(-1, held[:, None], torch.where(own, by_logprob, 0.0)[:, None])
        return (gradient / ctx.temperature).to(ctx.dtype), None, None, None, None


def _all_reduce(tensor: Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> Tensor:
    dist.all_reduce(tensor, op=op, group=group)  # pyright: ignore[reportUnknownMemberType]
    return tensor
