"""The entropy bonus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Terms, in_tiles, per_decision, zero_masked
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def entropy_loss(entropy: Tensor, mask: Tensor) -> LossOutput[Tensor]:
    """The negative entropy, so that minimising it keeps a policy undecided.

    L = −H(π(·|s))

    Williams and Peng, "Function Optimization using Connectionist Reinforcement Learning Algorithms" (1991),
    doi:10.1080/09540099108946587.

    Args:
        entropy: `[B, T]`, `[B, T, K]` or `[B, T, K, A]` in nats, averaged over what follows T; differentiable.
        mask: `[B, T]` bool.

    Returns:
        The sum over unmasked decisions and their number. Metrics: `entropy`.

    Raises:
        ShapeError: the leading sizes are not those of `mask`.
    """
    return in_tiles(entropy_terms, TOKEN_MEAN, entropy=entropy, mask=mask)


def entropy_terms(entropy: Tensor, mask: Tensor) -> Terms:
    """`entropy_loss` before it is summed."""
    if entropy.shape[: mask.dim()] != mask.shape:
        found = f"expected leading sizes {tuple(mask.shape)}, found {tuple(entropy.shape)}"
        raise ShapeError("entropy_loss(entropy)", found)
    found = per_decision(zero_masked(entropy, mask))
    return Terms(-found, {"entropy": found.detach()})
