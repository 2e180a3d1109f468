"""How much likelier decisions became, and what counts as one decision: what every loss with an importance ratio starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, bounded
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.algorithms.losses.terms import like, zero_masked
from rlinf.core.data import sequences
from rlinf.core.data.sequences import Granularity, check_granularity
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND: Final = 20.0
"""Log-ratios are clamped to ±20: an exponential that overflows would turn the gradient of a clipped ratio into 0 · ∞."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Importance ratios and what their decisions were worth; neutral where masked."""

    valid: Tensor
    """`[B, T, 1…]` bool."""
    log: Tensor
    """`[B, T, …]`, log ρ; 0 where masked."""
    value: Tensor
    """`[B, T, …]`, ρ; 1 where masked."""
    gain: Tensor
    """`[B, T, 1…]`, Â without gradient; 0 where masked."""


def ratio_of(
    place: str,
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    low: float = -LOG_RATIO_BOUND,
    high: float = LOG_RATIO_BOUND,
) -> Ratio:
    """ρ = exp(clip(log π − log π_old, low, high)) with the advantages that belong to it.

    Args:
        place: the function that needs it, for messages.
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`.
        logprob_old: the same shape.
        advantage: `[B, T]`.
        mask: `[B, T]` bool.
        low: the least log ρ.
        high: the greatest log ρ.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    check_logprobs(place, advantage, mask, logprob=logprob, logprob_old=logprob_old)
    log = bounded(log_ratio(logprob, logprob_old, mask), low, high)
    return Ratio(like(mask.bool(), logprob), log, log.exp(), like(masked_gain(advantage, mask), logprob))


def log_ratio(logprob: Tensor, logprob_old: Tensor, mask: Tensor) -> Tensor:
    """`[B, T, …]`, log π − log π_old; 0 where masked."""
    return zero_masked(at_least_float32(logprob) - at_least_float32(logprob_old), mask)


def masked_gain(advantage: Tensor, mask: Tensor) -> Tensor:
    """`[B, T]`, the advantage as a constant, 0 where masked."""
    return zero_masked(advantage.detach(), mask)


@no_grad
def observed_ratio(log: Tensor, mask: Tensor, times: Tensor | None = None) -> dict[str, Tensor]:
    """The metrics of ratios, each summed over the decisions of `mask`; the elements of a decision are averaged.

    Args:
        log: `[B, T, …]`, log ρ; 0 where masked.
        mask: `[B, T]` bool.
        times: `[B, T]`, how many decisions share the ratio; None for one.
    """
    beyond = log.expm1()  # ρ − 1, of which small log-ratios lose nothing
    found = {"ratio": beyond, "ratio_abs": beyond.abs(), "approx_kl": beyond - log}
    elements = log.shape[2:].numel()
    sums = {name: (x if times is None else x * times).sum() / elements for name, x in found.items()}
    # Σ ρ is Σ (ρ − 1) and 1 for each decision; what is masked has added 0.
    return {**sums, "ratio": sums["ratio"] + (mask if times is None else times).sum()}


def check_logprobs(place: str, advantage: Tensor, mask: Tensor, *, logprob: Tensor, **same: Tensor) -> None:
    """Refuses log-probabilities that are not `[B, T, …]`, others that are not like them, and credit that is not `[B, T]`.

    Raises:
        ShapeError: the message names the argument.
    """
    if not 2 <= logprob.dim() <= 4:
        raise ShapeError(f"{place}(logprob)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(logprob.shape)}")
    for name, tensor in same.items():
        expect_shape(f"{place}({name})", tensor, logprob.shape)
    expect_shape(f"{place}(mask)", mask, logprob.shape[:2])
    expect_shape(f"{place}(advantage)", advantage, logprob.shape[:2])


@takes_tensors
def at_granularity(x: Tensor, granularity: Granularity, executed: Tensor | None = None) -> Tensor:
    """Adds log-probabilities, or entropies, of the parts of a decision up to what counts as one action.

    log π(a₁, …, a_n | s) = Σᵢ log π(aᵢ | s, a_<i),   H(π) = Σᵢ H(π(· | s, a_<i))

    The chain rule of probability. So the ratio of a chunk is the product of the ratios of its steps, and that of a step the product
    over its dimensions. What is coarse already stays as it is.

    | granularity | `[B, T, K, A]` becomes | `[B, T, K]` becomes | one ratio for |
    |---|---|---|---|
    | `token_level` | `[B, T, K, A]` | `[B, T, K]` | each dimension of each step |
    | `action_level` | `[B, T, K]` | `[B, T, K]` | each step |
    | `chunk_level` | `[B, T]` | `[B, T]` | the whole decision |

    Args:
        x: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, in nats.
        granularity: what counts as one action.
        executed: `[B, T, K]` bool, False for steps that the robot never made, which add nothing; None if it made all.

    Returns:
        At least float32; differentiable.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: there is no such granularity; the message has the nearest.
    """
    if not 2 <= x.dim() <= 4:
        raise ShapeError("at_granularity(x)", f"expected [B, T], [B, T, K] or [B, T, K, A], found {tuple(x.shape)}")
    check_granularity(granularity, place="at_granularity(granularity)")
    x = at_least_float32(x)
    if executed is not None:
        expect_shape("at_granularity(executed)", executed, _steps(x))
        x = torch.where(like(executed.bool(), x), x, 0.0)
    return sequences.at_granularity(x, granularity, axes=2)


def _steps(x: Tensor) -> tuple[int, ...]:
    if x.dim() == 2:
        raise ShapeError("at_granularity(executed)", f"expected None where x has no steps, found x {tuple(x.shape)}")
    return tuple(x.shape[:3])
