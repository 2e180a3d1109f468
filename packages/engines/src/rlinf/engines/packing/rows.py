"""Rows of text of different lengths, laid side by side so that little padding is computed.

    rows of a batch            a packed micro-batch                 what the loss sees
    aaaaaaaa                   aaaaaaaa                             aaaaaaaa
    bbb.....      ── pack ─▶   bbbddcc.   ── forward, unpack ─▶     bbb.....
    cc......                                                        cc......
    dd......                                                        dd......

Only the forward pass is packed. Log-probabilities, entropies and values go back to their rows before the loss, which sees whole
rows with all their fields. So every loss stays right: of tokens, of sequences, with groups, with `value` and its T + 1 columns.
Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021), arXiv:2107.02027.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from rlinf.core.data import Batch, Trajectory
from rlinf.core.data.sequences import first_fit_decreasing
from rlinf.core.data.tree import tree_map
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric
from rlinf.engines.packing.prefixes import may_share, prefix_trees, row_keys, seen_until, tree_places

SEGMENTS: Final = "segment_ids"
IDS: Final = "input_ids"
SEEN_UNTIL: Final = "seen_until"
"""See `rlinf.core.capabilities.SeesTrees`."""


@dataclass(frozen=True, slots=True)
class PacksRows:
    """Which rows of a batch lie in which packed row."""

    width: int
    """Columns of a packed row: the length of the longest member."""
    bins: tuple[tuple[int, ...], ...]
    """For each packed row its members, rows of the batch, side by side from the left."""
    shared: tuple[tuple[int, ...], ...] | None = None
    """For each member how many columns it shares with the one before it (`rlinf.engines.packing.prefixes`); None if none is."""

    @property
    def saved(self) -> int:
        """Columns that are not computed because another row has them."""
        return sum(sum(one) for one in self.shared or ())

    @property
    def tokens(self) -> int:
        """Columns that are computed, padding included."""
        return self.width * len(self.bins)

    @property
    def members(self) -> tuple[int, ...]:
        """All rows, in the order of the batch."""
        return tuple(sorted(row for one in self.bins for row in one))

    def alone(self) -> PacksRows:
        """The same for a batch that has no rows but the members."""
        place = {row: i for i, row in enumerate(self.members)}
        return PacksRows(self.width, tuple(tuple(place[row] for row in one) for one in self.bins), self.shared)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a batch, and how they are packed for the forward pass."""

    batch: Batch[Any]
    packing: PacksRows | None
    """Of the rows of `batch`; None if they are computed as they are."""
    rows: Sequence[int]
    """Which rows of the larger batch they were."""


def plan_packing(lengths: Sequence[int], max_tokens: int) -> list[PacksRows]:
    """Divides rows into packed micro-batches, first-fit-decreasing: the same for the same lengths, on every rank.

    Johnson, "Near-optimal bin packing algorithms" (1973). A micro-batch is as wide as its longest row and no wider, so that
    attention over one packed row costs no more than over that row.

    Args:
        lengths: tokens of each row, ≥ 0.
        max_tokens: the most columns of a micro-batch, padding included; a longer row goes alone.
    """
    left = list(range(len(lengths)))
    plans: list[PacksRows] = []
    while left:
        sizes = [lengths[row] for row in left]
        # Rows without a token still have a column.
        width = max(1, *sizes)
        bins = first_fit_decreasing(sizes, width, bins=max(1, max_tokens // width))
        plans.append(PacksRows(width, tuple(tuple(left[item] for item in one) for one in bins)))
        laid = {row for one in plans[-1].bins for row in one}
        left = [row for row in left if row not in laid]
    return plans


def token_lengths(batch: Batch[Any]) -> list[int]:
    """How many columns of each row are no padding.

    Raises:
        ShapeError: the context is not that of a language model.
    """
    return cast("list[int]", (_segments(batch) > 0).sum(1).tolist())  # pyright: ignore[reportUnknownMemberType]


def micro_batches_of(batches: Iterable[Batch[Any]], max_tokens: int | None, *, share_prefixes: bool = False) -> list[MicroBatch]:
    """What is computed in one pass each: batches as they are, or with `max_tokens` their `packed_micro_batches`."""
    if max_tokens is None:
        return [MicroBatch(batch, None, range(len(batch))) for batch in batches]
    return [part for batch in batches for part in packed_micro_batches(batch, max_tokens, share_prefixes=share_prefixes)]


def packed_micro_batches(batch: Batch[Any], max_tokens: int, *, share_prefixes: bool = False) -> list[MicroBatch]:
    """Micro-batches of whole rows, each to be packed into no more than `max_tokens` columns; a longer row goes alone.

    Args:
        batch: rows of text.
        max_tokens: the most columns of a micro-batch.
        share_prefixes: whether what rows begin with alike is computed once; rows of several sequences, or that show something else
            than text, are computed as they are.

    Raises:
        ShapeError: the context is not that of a language model.
    """
    segments = _segments(batch)
    if share_prefixes and may_share(batch.trajectory.context, segments):
        plans = _plan_trees(batch, segments, max_tokens)
    else:
        plans = plan_packing(token_lengths(batch), max_tokens)
    return [MicroBatch(batch.rows(list(plan.members)), plan.alone(), plan.members) for plan in plans]


def _plan_trees(batch: Batch[Any], segments: Tensor, max_tokens: int) -> list[PacksRows]:
    """As `plan_packing`, of trees in place of rows."""
    t = batch.trajectory
    ids = torch.as_tensor(cast("Mapping[str, Any]", t.context)[IDS])
    action = torch.as_tensor(t.action).reshape(ids.shape)
    trees = prefix_trees(row_keys(ids, action, [torch.nonzero(row > 0).flatten() for row in segments]), max_tokens)
    return [
        PacksRows(
            plan.width,
            tuple(tuple(row for number in one for row in trees[number].rows) for one in plan.bins),
            tuple(tuple(common for number in one for common in trees[number].shared) for one in plan.bins),
        )
        for plan in plan_packing([tree.tokens for tree in trees], max_tokens)
    ]


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch laid out for the forward pass, and the way back."""

    batch: Batch[Tensor]
    """`[R, W]`: context, action and what else has a time axis. Groups and values belong to rows, and are not here."""
    shape: tuple[int, int]
    """B and T of the rows."""
    source: tuple[Tensor, Tensor]
    """Row and column of each token in the rows."""
    target: tuple[Tensor, Tensor]
    """Row and column of each token in the packing."""
    decided: Tensor | None
    """`[B, T]` bool, the mask of the rows where some columns are shared, of which it may hold for one row alone; None otherwise."""

    def unpack(self, tensor: Tensor) -> Tensor:
        """`[B, T, …]` of `[R, W, …]`; 0 where the rows have padding. Differentiable."""
        empty = tensor.new_zeros((*self.shape, *tensor.shape[2:]))
        return empty.index_put(self.source, tensor[self.target])

    def unpack_decided(self, tensor: Tensor) -> Tensor:
        """The same of what is known of decisions alone: 0 where the rows have none."""
        found = self.unpack(tensor)
        return found if self.decided is None else torch.where(self.decided, found, 0.0)


def pack(batch: Batch[Tensor], packing: PacksRows) -> Packed:
    """Lays the rows of a batch out as planned; padding left of, right of or between tokens is dropped.

    Args:
        batch: rows of text; a row may hold several sequences, told apart by `segment_ids`.
        packing: of exactly these rows.

    Raises:
        ShapeError: the context is not that of a language model.
    """
    segments = _segments(batch)
    rows = [row for one in packing.bins for row in one]
    columns = [torch.nonzero(segments[row] > 0).flatten() for row in rows]
    device, shared = segments.device, packing.shared or tuple((0,) * len(one) for one in packing.bins)
    lengths = {row: len(found) for row, found in zip(rows, columns, strict=True)}
    places = [tree_places([lengths[row] for row in one], common) for one, common in zip(packing.bins, shared, strict=True)]
    flat = [torch.from_numpy(place).to(device) for one in places for place in one]  # pyright: ignore[reportUnknownMemberType]
    bins = [number for number, one in enumerate(packing.bins) for _ in one]
    source = torch.cat([torch.full_like(found, row) for row, found in zip(rows, columns, strict=True)]), torch.cat(columns)
    target = (
        torch.cat([torch.full_like(found, number) for number, found in zip(bins, columns, strict=True)]),
        torch.cat(flat),
    )

    def gather(leaf: Any) -> Tensor:
        empty = leaf.new_zeros((len(packing.bins), packing.width, *leaf.shape[2:]))
        if leaf.dtype == torch.bool:
            # A shared column is decided, or ends something, if it does in any of its rows.
            return empty.int().index_put_(target, leaf[source].int(), accumulate=True) > 0
        empty[target] = leaf[source]
        return empty

    # Members differ in the number that is added, and so do their sequences from those of their neighbours.
    widest = int(segments.max()) + 1
    numbered = gather(segments + widest * torch.arange(len(batch), device=device)[:, None])
    laid = _gathered(batch, gather, numbered)
    if packing.shared is not None:
        until = [seen_until(one, common, packing.width) for one, common in zip(places, shared, strict=True)]
        laid = _seen(laid, torch.as_tensor(np.stack(until), device=device))
    decided = None if packing.shared is None else batch.trajectory.mask
    return Packed(laid, (len(batch), batch.trajectory.horizon), source, target, decided)


def shared_tokens(part: MicroBatch) -> dict[str, Metric]:
    """`shared_tokens`: which share of the columns of rows is not computed, because another row of the micro-batch has it."""
    saved = 0 if part.packing is None else part.packing.saved
    return {"shared_tokens": Metric(float(saved), float(sum(token_lengths(part.batch))))}


def _seen(batch: Batch[Tensor], until: Tensor) -> Batch[Tensor]:
    context = {**cast("Mapping[str, Tensor]", batch.trajectory.context), SEEN_UNTIL: until}
    return replace(batch, trajectory=replace(batch.trajectory, context=context))


def _gathered(batch: Batch[Tensor], gather: Any, segments: Tensor) -> Batch[Tensor]:
    t, credit = batch.trajectory, batch.credit
    context = {**cast("Mapping[str, Tensor]", tree_map(gather, t.context)), SEGMENTS: segments}
    trajectory = Trajectory.of(
        context=context,
        action=gather(t.action),
        logprob=gather(t.logprob),
        reward=gather(t.reward),
        terminated=gather(t.terminated),
        truncated=gather(t.truncated),
        mask=gather(t.mask),
        version=gather(t.version),
    )
    return Batch.of(trajectory, gather(credit.advantage))


def _segments(batch: Batch[Any]) -> Tensor:
    context: Any = batch.trajectory.context
    if not isinstance(context, Mapping) or IDS not in context:
        found = sorted(cast("Mapping[str, Any]", context)) if isinstance(context, Mapping) else "an array"
        remedy = "Remove actor.max_tokens_per_mbs: only text is packed."
        raise ShapeError("pack(batch)", f"expected a context with '{IDS}', found {found}", remedy)
    leaves = cast("Mapping[str, Any]", context)
    return torch.as_tensor(leaves[SEGMENTS]) if SEGMENTS in leaves else torch.ones_like(torch.as_tensor(leaves[IDS]))
