"""What every policy does with its arguments before it decides or scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf.core.data import Decision, Rescored
from rlinf.core.protocols import Mode
from rlinf.core.trajectory import Batch, Credit
from rlinf.core.tree import Tree, tree_index, tree_map
from rlinf.models.observations import refuse_not_finite

_NONE: Final = slice(0, 0)


def decides(decide: Callable[..., Decision[Tensor]]) -> Callable[..., Decision[Tensor]]:
    """`predict_action_batch` that refuses observations that are not finite, and takes no rows, too.

    Many networks can't be asked about no rows: they are asked about a row of zeros, of which nothing is kept.
    """

    @functools.wraps(decide)
    def checked(
        self: Any, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        refuse_not_finite(env_obs)
        if not _empty(env_obs):
            return decide(self, env_obs, mode, generator=generator)
        decision = decide(self, tree_map(_blank_leaf, env_obs), mode, generator=generator)
        return replace(
            decision,
            action=decision.action[_NONE],
            logprob=decision.logprob[_NONE],
            value=None if decision.value is None else decision.value[_NONE],
            context=tree_index(decision.context, _NONE),
        )

    return checked


def scores(score: Callable[..., Rescored[Tensor]]) -> Callable[..., Rescored[Tensor]]:
    """`default_forward` that takes no rows, too; a graph remains, since a sharded network must run on every rank."""

    @functools.wraps(score)
    def checked(self: Any, batch: Batch[Tensor]) -> Rescored[Tensor]:
        if len(batch):
            return score(self, batch)
        found = score(self, _blank_batch(batch))
        return replace(
            found,
            logprob=found.logprob[_NONE],
            entropy=None if found.entropy is None else found.entropy[_NONE],
            value=None if found.value is None else found.value[_NONE],
        )

    return checked


def _empty(env_obs: Tree[Any]) -> bool:
    """Whether observations have no rows; judged by the first leaf, for this is asked at every decision."""
    leaf: Any = env_obs
    while isinstance(leaf, Mapping):
        leaf = next(iter(cast("Mapping[str, Any]", leaf).values()), (None,))
    return len(leaf) == 0


def _blank_leaf(leaf: Any) -> Any:
    """A leaf with one row of zeros, or of no text."""
    if isinstance(leaf, Tensor):
        return leaf.new_zeros(1, *leaf.shape[1:])
    if isinstance(leaf, np.ndarray):
        array = cast("NDArray[Any]", leaf)
        return np.zeros((1, *array.shape[1:]), array.dtype)
    return [""]  # what comes as a list is text


def _blank_batch(batch: Batch[Tensor]) -> Batch[Tensor]:
    """A batch with one row, which only pads: its mask is False, its numbers are 0.

    What its context says there is (`token_mask`, `image_masks`) is there: attention to nothing is not a number, and so would be
    the gradient of nothing.
    """

    def blank(leaf: Tensor) -> Tensor:
        return leaf.new_zeros(1, *leaf.shape[1:])

    def context(leaf: Tensor) -> Tensor:
        return leaf.new_ones(1, *leaf.shape[1:]) if leaf.dtype == torch.bool else blank(leaf)

    t, credit = batch.trajectory, batch.credit
    target = None if credit.target is None else blank(credit.target)
    return Batch(
        trajectory=replace(t.map(blank), context=tree_map(context, t.context)),
        credit=Credit(advantage=blank(credit.advantage), target=target),
    )
