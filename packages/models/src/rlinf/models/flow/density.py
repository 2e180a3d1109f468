"""From the elements of a chain to the log-probability of a decision."""

from __future__ import annotations

from torch import Tensor

from rlinf.core.data.sequences import Granularity, at_granularity
from rlinf.core.errors import ConfigError
from rlinf.models.flow.sampling import Density


def of_decision(x: Tensor, *, steps: int, size: int, level: Granularity, density: Density = "executed") -> Tensor:
    """Log-probabilities, or entropies, of what counts of a chain, at a granularity.

    A flow often denoises more than is executed: a horizon H of which K steps are, and D dimensions of which the robot has A. The
    rest is drawn too, and the field sees it at the next step. "chain" counts all of it: exact for the chain, whose ratio then also
    judges noise that nobody acted on. "executed" counts `[:K, :A]`: exact where H = K and D = A, and else a shortcut, the
    product of the densities of single elements with the rest left out instead of integrated out. Chen et al., "πRL" (2025),
    arXiv:2510.25889, take the shortcut: the ratio of what was executed has less variance.

    Args:
        x: `[B, H, D]`, of `ChainScore`.
        steps: K, executed steps.
        size: A, dimensions of an action.
        level: the granularity; "chain" has that of the whole chunk only.
        density: which elements count.

    Returns:
        `[B]`, `[B, K]` or `[B, K, A]`.

    Raises:
        ConfigError: "chain" at a finer granularity than the chunk's.
    """
    if density == "executed":
        return at_granularity(x[:, :steps, :size], level, axes=1)
    if level != "chunk_level":
        raise ConfigError("sampling.density", f"'chain' has no {level}", "Set logprob_type to chunk_level, or density to executed.")
    return at_granularity(x, level, axes=1)
