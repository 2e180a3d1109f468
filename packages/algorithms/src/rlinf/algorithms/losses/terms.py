"""From what a loss says of each decision to sums, weights and metrics: aggregated, and in tiles of rows where there are many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.compat.words import AGGREGATIONS
from rlinf.algorithms.elementwise import at_least_float32, keep
from rlinf.algorithms.lazy import no_grad, torch
from rlinf.algorithms.tiling import rows_at_once
from rlinf.core.config import expect_at_least
from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError, ShapeError, did_you_mean
from rlinf.core.metrics import ExplainedVariance, Metric, Statistic

if TYPE_CHECKING:
    from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "constant-length", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A mean over decisions (tokens), or over rows (sequences) of what their decisions add up to.

    | mode | Σ over micro-batches and ranks of `factor · loss`, divided by Σ `weight` | used by |
    |---|---|---|
    | `token-mean` | Σ ℓ / number of decisions | DAPO (2025), eq. 12, arXiv:2503.14476; robots |
    | `seq-mean-token-sum` | mean over rows of Σₜ ℓ | REINFORCE; RLOO |
    | `seq-mean-token-mean` | mean over rows of their mean ℓ | GRPO (2024), eq. 3, arXiv:2402.03300 |
    | `constant-length` | mean over rows of Σₜ ℓ / length | Dr. GRPO (2025), arXiv:2503.20783 |

    `seq-mean-token-sum-norm` is verl's name of the last.

    A row without decisions is padding and counts nowhere. A row must not be parted: where decisions are trained on one by one
    (`Batch.decisions`), every row is one decision, and the four differ by `length` at most.
    """

    mode: Mode = "token-mean"
    length: int | None = None
    """The constant L of `constant-length`, in decisions: the longest that a row may get. None for the other modes."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigError("loss_agg_func", f"no aggregation '{self.mode}'", did_you_mean(self.mode, get_args(Mode)))
        # Two names of one aggregation must compare equal, so only ours is stored.
        object.__setattr__(self, "mode", AGGREGATIONS.get(self.mode, self.mode))
        if (self.mode == "constant-length") != (self.length is not None):
            problem = f"expected a length with 'constant-length' and with no other mode, found {self.length} with '{self.mode}'"
            raise ConfigError("loss_agg_length", problem)
        expect_at_least("loss_agg_length", self.length, 1)

    def factors(self, mask: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """What each decision's loss is multiplied with, and what the sum is divided by.

        Args:
            mask: `[B, T]` bool.
            dtype: of the result, float32 or finer; None for float32.

        Returns:
            `[B, T]` factors, 0 where masked, and the weight `[]`.
        """
        factor, weight = self.of_rows(mask.bool().sum(1).to(dtype or torch.float32))
        return torch.where(mask.bool(), factor[:, None], 0.0), weight

    def of_rows(self, decisions: Tensor) -> tuple[Tensor, Tensor]:
        """What each row's sum of losses is multiplied with, and what the sum over rows is divided by: `[B]` and `[]`.

        Args:
            decisions: `[B]`, how many each row has; float32 or finer.
        """
        if self.mode == "token-mean":
            return torch.ones_like(decisions), decisions.sum()
        # Rows without decisions are padding: counting them would make a loss depend on how a batch was filled up.
        weight = (decisions > 0).sum().to(decisions.dtype)
        if self.mode == "seq-mean-token-mean":
            # A row without decisions would give 1 / 0, and ∞ · 0 is NaN.
            return 1.0 / decisions.clamp(min=1.0), weight
        return torch.full_like(decisions, 1.0 / (self.length or 1)), weight


TOKEN_MEAN = Aggregation()


@dataclass(frozen=True, slots=True)
class Terms:
    """A loss before it is summed; everything is `[B, T]` and 0 where masked."""

    loss: Tensor
    """What each decision adds to the total; differentiable."""
    observed: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """What to log of each decision; no gradient. `[]` for what is summed over the decisions already."""
    explained: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict[str, "tuple[Tensor, Tensor]"])
    """A target and the error of its prediction, whose explained variance is logged; no gradient."""
    by_row: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """What to log of each row, `[B]`; 0 for a row without decisions, which counts nowhere; no gradient."""


def joined(parts: list[Terms]) -> Terms:
    """The sum of losses, with the metrics of all."""
    loss = parts[0].loss
    observed, explained, by_row = dict(parts[0].observed), dict(parts[0].explained), dict(parts[0].by_row)
    for part in parts[1:]:
        loss = loss + part.loss
        observed.update(part.observed)
        explained.update(part.explained)
        by_row.update(part.by_row)
    return Terms(loss, observed, explained, by_row)


def per_decision(x: Tensor) -> Tensor:
    """The mean over what follows the axes B and T: `[B, T]` from `[B, T]`, `[B, T, K]` or `[B, T, K, A]`."""
    return x if x.dim() == 2 else x.flatten(2).mean(2)


def counted(shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How many decisions are so, `[]` each: from bools, of which those of one decision's elements are a share of it."""
    return {name: x.sum() / x.shape[2:].numel() for name, x in shares.items()}


def like(x: Tensor, target: Tensor) -> Tensor:
    """`x` of shape `[B, T]` with axes of size 1 appended, until it has as many as `target`."""
    return x.reshape(*x.shape, *[1] * (target.dim() - x.dim()))


def summed(terms: Terms, mask: Tensor, aggregation: Aggregation = TOKEN_MEAN) -> LossOutput[Tensor]:
    """The loss with its weight; metrics are means over unmasked decisions or over rows, whatever the aggregation.

    Args:
        terms: values of each decision.
        mask: `[B, T]` bool.
        aggregation: what the total is a sum of, and what the weight counts.
    """
    total, weight, sums = sums_of(terms, mask, aggregation)
    return LossOutput(total=total, weight=weight, metrics=metrics_of(terms.observed, terms.explained, sums, terms.by_row))


def sums_of(terms: Terms, mask: Tensor, aggregation: Aggregation) -> tuple[Tensor, Tensor, Tensor]:
    """The total and the weight, each `[]`, and what `metrics_of` reads; all three add up over any split into rows.

    Raises:
        ConfigError: `aggregation` is something else, such as a mode alone.
    """
    if not isinstance(aggregation, Aggregation):
        raise ConfigError("aggregation", f"expected an Aggregation, found {aggregation!r}", "Write Aggregation(mode).")
    decisions = mask.bool().sum(1).to(terms.loss.dtype)
    factor, weight = aggregation.of_rows(decisions)
    # All factors of a mean over tokens are 1: a product with them would be one more pass.
    total = terms.loss.sum() if aggregation.mode == "token-mean" else terms.loss.sum(1) @ factor
    return total, weight, _sums(terms, decisions)


@no_grad
def _sums(terms: Terms, decisions: Tensor) -> Tensor:
    # In float64: means of micro-batches are added over a whole run.
    sums = [decisions.sum().double(), *(values.sum().double() for values in terms.observed.values())]
    for target, error in terms.explained.values():
        target, error = target.double(), error.double()
        sums += [error.sum(), error.square().sum(), target.sum(), target.square().sum()]
    if terms.by_row:
        sums += [(decisions > 0).sum().double(), *(values.sum().double() for values in terms.by_row.values())]
    return torch.stack(sums)


def metrics_of(
    observed: Collection[str], explained: Collection[str], sums: Tensor, by_row: Collection[str] = ()
) -> dict[str, Statistic]:
    """The metrics by name, from the last of `sums_of`; one transfer to Python."""
    # The only point where the CPU waits for the GPU; per metric it would be a stall each.
    count, *rest = cast("list[float]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]
    metrics: dict[str, Statistic] = {name: Metric(rest[i], count) for i, name in enumerate(observed)}
    for i, name in enumerate(explained):
        start = len(observed) + 4 * i
        metrics[name] = ExplainedVariance(count, *rest[start : start + 4])
    if by_row:
        rows, *totals = rest[len(observed) + 4 * len(explained) :]
        metrics |= {name: Metric(total, rows) for name, total in zip(by_row, totals, strict=True)}
    return metrics


@takes_tensors
def aggregate(loss: Tensor, mask: Tensor, aggregation: Aggregation = TOKEN_MEAN) -> LossOutput[Tensor]:
    """Any loss of decisions as a sum and its weight, whose ratio over the whole batch is the mean that `aggregation` names.

    L = Σ factor · ℓ / Σ weight, see `Aggregation`

    Args:
        loss: `[B, T]`, what each decision costs; differentiable.
        mask: `[B, T]` bool.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `loss`, its mean over decisions.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_shape("aggregate(loss)", loss, mask.shape)
    loss = zero_masked(loss, mask)
    return summed(Terms(loss, {"loss": loss.detach()}), mask, aggregation)


def zero_masked(x: Tensor, mask: Tensor) -> Tensor:
    """`x` in float32 or finer, 0 without a gradient where masked: what stands there may be anything.

    Args:
        x: `[B, T, …]`.
        mask: bool, the leading axes of `x`.
    """
    return keep(at_least_float32(x), like(mask.bool(), x))


def in_tiles(
    terms: Callable[..., Terms], aggregation: Aggregation, *, mask: Tensor, **tensors: Tensor | None
) -> LossOutput[Tensor]:
    """`summed(terms(…), mask, aggregation)`, some rows after the other if there are many.

    A loss is a sum over rows, so its gradient is known as soon as the loss is: what operations keep for the way back is dropped
    after every tile, and only the gradients themselves are held. They can't be differentiated once more.

    Args:
        terms: called with `mask` and `tensors` by name; what it says of a row must depend on that row alone.
        aggregation: what the total sums and the weight counts.
        mask: `[B, T]` bool.
        tensors: `[B, …]`; None is passed on.
    """
    from rlinf.algorithms.losses._terms import Tiled

    given = {"mask": mask, **tensors}
    rows = rows_at_once([x for x in given.values() if x is not None])
    if rows is None:
        return summed(terms(**given), mask, aggregation)
    run = Run(terms, given, aggregation, rows)
    try:
        total = cast("Tensor", Tiled.apply(run, *run.leaves.values())) if run.leaves else run.whole()[0]
    except ShapeError:
        return summed(terms(**given), mask, aggregation)  # raises it again, with the sizes that the caller knows
    return LossOutput(total=total, weight=run.weight, metrics=metrics_of(run.observed, run.explained, run.sums, run.by_row))


@dataclass(slots=True)
class Run:
    """One loss, tile by tile, and what it adds up to."""

    terms: Callable[..., Terms]
    tensors: Mapping[str, Any]
    aggregation: Aggregation
    rows: int
    leaves: dict[str, Tensor] = field(init=False)
    weight: Any = 0.0
    sums: Any = 0.0
    observed: Collection[str] = ()
    explained: Collection[str] = ()
    by_row: Collection[str] = ()

    def __post_init__(self) -> None:
        # Under no_grad nothing is a leaf, and the tiles are only summed.
        grad = torch.is_grad_enabled()
        self.leaves = {name: x for name, x in self.tensors.items() if grad and x is not None and x.requires_grad}

    def whole(self) -> tuple[Tensor, list[Tensor | None]]:
        """The total, and its gradient with respect to each leaf; None where it does not depend on it."""
        total: Any = 0.0
        slopes: dict[str, Tensor] = {}
        for start in range(0, len(self.tensors["mask"]), self.rows):
            tile = slice(start, start + self.rows)
            rows: dict[str, Any] = {name: None if x is None else x.detach()[tile] for name, x in self.tensors.items()}
            # Fresh leaves for each tile: the graph ends here, so a tile frees its memory before the next begins.
            leaves = {name: at_least_float32(rows[name]).requires_grad_() for name in self.leaves}
            part = self._summed({**rows, **leaves})
            total = total + part.detach()
            # A tile whose every decision is masked, or clipped, may depend on no leaf.
            if not part.requires_grad:
                continue
            found = cast("Sequence[Tensor | None]", torch.autograd.grad(part, list(leaves.values()), allow_unused=True))
            for (name, leaf), slope in zip(leaves.items(), found, strict=True):
                if slope is not None:
                    # Allocated when first needed: a leaf on which the loss never depends keeps None, as autograd gives it.
                    if name not in slopes:
                        slopes[name] = torch.zeros(self.leaves[name].shape, dtype=leaf.dtype, device=leaf.device)
                    slopes[name][tile] = slope
        return total, [slopes.get(name) for name in self.leaves]

    def _summed(self, rows: Mapping[str, Any]) -> Tensor:
        """The total of a tile; all else is added to what there is."""
        with torch.set_grad_enabled(bool(self.leaves)):
            terms = self.terms(**rows)
            total, weight, sums = sums_of(terms, rows["mask"], self.aggregation)
        self.weight, self.sums = self.weight + weight, self.sums + sums
        self.observed, self.explained, self.by_row = list(terms.observed), list(terms.explained), list(terms.by_row)
        return total
