"""What counts as one action of a policy that decides whole chunks."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rlinf.core.errors import ConfigError

LogprobType = Literal["token_level", "action_level", "chunk_level"]
"""One log-probability for each dimension of each step, for each step, or for the whole chunk."""

_FIRST_SUMMED: dict[str, int] = {"token_level": 3, "action_level": 2, "chunk_level": 1}


def at_level(x: Tensor, level: LogprobType) -> Tensor:
    """Adds log-probabilities, or entropies, of single dimensions up to those of a declared granularity.

    log π(a₁, …, a_n | s) = Σᵢ log π(aᵢ | s, a_<i)

    Args:
        x: `[B, K, A]`, in nats.
        level: the granularity.

    Returns:
        `[B, K, A]`, `[B, K]` or `[B]`.

    Raises:
        ConfigError: an unknown granularity.
    """
    if level not in _FIRST_SUMMED:
        raise ConfigError("logprob_type", f"expected one of {', '.join(_FIRST_SUMMED)}, found '{level}'")
    axes = tuple(range(_FIRST_SUMMED[level], 3))
    return x.sum(axes) if axes else x
