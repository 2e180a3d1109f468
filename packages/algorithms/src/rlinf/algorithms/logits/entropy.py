"""Entropies of tokens' distributions from logits, in memory for one gradient and no other copy."""

from __future__ import annotations

from torch import Tensor

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.logits.categorical import Categorical, evaluate
from rlinf.algorithms.logits.vocabulary import restricted


@takes_tensors
def entropy_from_logits(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    allowed: slice | Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The entropy of each distribution over tokens.

    H = −Σ_v π(v) log π(v),   π = softmax(logits / temperature),   ∂H/∂z_v = −π(v) (log π(v) + H)

    Shannon, "A Mathematical Theory of Communication" (1948), doi:10.1002/j.1538-7305.1948.tb01338.x. Computed like
    `logprob_from_logits`, a few rows at a time; a token with logit −∞ adds nothing to value or gradient.

    Args:
        logits: `[..., V]`, in any layout; −∞ excludes a token. Half precision is computed in float32.
        temperature: what logits are divided by, above 0.
        top_k: how many tokens may be chosen, the likeliest (and those that equal the last of them); None for all.
        allowed: a slice of the vocabulary, or ids `[M]` that differ: the only tokens that may be chosen; None for all.
        chunk: rows at a time; None chooses by size.

    Returns:
        `[...]` in nats, in [0, log V], float32 or finer. Differentiable once.

    Raises:
        ConfigError: a hyper-parameter is out of range.
    """
    head = Categorical("entropy_from_logits", temperature, top_k, chunk)
    part = logits if allowed is None else restricted(head.place, logits, allowed)
    _, entropy = evaluate(head, part, None, with_entropy=True)
    assert entropy is not None
    return entropy
