"""Log-probabilities of tokens from logits, in memory for one gradient and no other copy."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.logits.categorical import Categorical, evaluate
from rlinf.algorithms.logits.vocabulary import positions, restricted


@takes_tensors
def logprob_from_logits(
    logits: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    allowed: slice | Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The log-probability of each token.

    log π(a) = z_a − log Σ_v exp z_v,   z = logits / temperature

    The logits are read a few rows at a time, and once more for the gradient, which is written where it stays: beside the logits
    there is one copy of them, their gradient. Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016),
    arXiv:1604.06174. Give logits as the model made them, and shift the tokens: a slice of logits has a gradient of its own.

    Args:
        logits: `[..., V]`, in any layout; −∞ excludes a token. Half precision is computed in float32.
        tokens: `[...]`, ids in [0, V); or `[..., K]`, several of each distribution.
        temperature: what logits are divided by, above 0.
        top_k: how many tokens may be chosen, the likeliest (and those that equal the last of them); None for all.
        allowed: a slice of the vocabulary, or ids `[M]` that differ: the only tokens that may be chosen; None for all.
        chunk: rows at a time; None chooses by size.

    Returns:
        Shape of `tokens`, float32 or finer; −∞ where a token can't be chosen. Differentiable once.

    Raises:
        ConfigError: a hyper-parameter is out of range.
        ShapeError: `tokens` has another shape, or an id on the CPU is outside [0, V); a GPU says that by itself.
    """
    head = Categorical("logprob_from_logits", temperature, top_k, chunk)
    return _evaluate(head, logits, tokens, allowed, with_entropy=False)[0]


@takes_tensors
def logprob_and_entropy_from_logits(
    logits: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    allowed: slice | Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Both `logprob_from_logits` and `entropy_from_logits` in one pass forward and one backward.

    log π(a) = z_a − log Σ_v exp z_v,   H = −Σ_v π(v) log π(v),   z = logits / temperature

    Arguments and errors are those of `logprob_from_logits`.

    Returns:
        Log-probabilities in the shape of `tokens` and entropies `[...]` in nats, float32 or finer. Differentiable once.
    """
    head = Categorical("logprob_and_entropy_from_logits", temperature, top_k, chunk)
    logprob, entropy = _evaluate(head, logits, tokens, allowed, with_entropy=True)
    assert entropy is not None
    return logprob, entropy


def _evaluate(
    head: Categorical, logits: Tensor, tokens: Tensor, allowed: slice | Tensor | None, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    if allowed is None:
        logprob, entropy = evaluate(head, logits, tokens, with_entropy=with_entropy)
        assert logprob is not None
        return logprob, entropy
    index, inside = positions(tokens, allowed, logits.shape[-1])
    logprob, entropy = evaluate(head, restricted(head.place, logits, allowed), index, with_entropy=with_entropy)
    assert logprob is not None
    return torch.where(inside, logprob, -torch.inf), entropy
