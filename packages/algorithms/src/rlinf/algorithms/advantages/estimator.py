"""What all advantages chosen by name have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from rlinf.algorithms.advantages.grouping import pairs
from rlinf.algorithms.advantages.inputs import CreditInputs
from rlinf.algorithms.advantages.normalize import Normalization, normalize_advantages
from rlinf.algorithms.advantages.scale import LossScale, loss_scale
from rlinf.algorithms.shapes import expect_choice
from rlinf.core.protocols import AllReduce
from rlinf.core.trajectory import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class Estimator(ABC):
    """An advantage by name: it works on a trajectory, or on the tensors themselves."""

    normalize_advantages: bool | Normalization = field(default=False, kw_only=True)
    """Over what advantages get mean 0 and variance 1: "batch" (or true), all unmasked decisions of all ranks; "group", those of the
    rows of a group; "none" (or false). Targets never do."""

    loss_scale: LossScale = field(default="none", kw_only=True)
    """What counts once in a loss, however many decisions it has: a group ("group"), an episode with all its turns and agents
    ("episode"), a row ("turn"); for the aggregation `token-mean`, see `loss_scale`. By "none", each decision."""

    def __post_init__(self) -> None:
        expect_choice("loss_scale", self.loss_scale, get_args(LossScale))
        expect_choice("normalize_advantages", self._normalization, get_args(Normalization))

    def __call__(self, trajectory: Trajectory[Tensor], *, all_reduce: AllReduce | None = None) -> Credit[Tensor]:
        """Credit of each decision.

        Args:
            trajectory: B rows of T decisions.
            all_reduce: sums a tensor over ranks; None if there is one.

        Returns:
            `advantage` and, of an estimator with a critic, `target`; each `[B, T]`, 0 where masked.

        Raises:
            ShapeError: something that the estimator needs is None; the message names it.
        """
        advantage, target = self.normalized(CreditInputs.of(trajectory), all_reduce=all_reduce)
        return Credit(advantage=advantage, target=target)

    def normalized(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor | None]:
        """What `of` says, with advantages normalised over what `normalize_advantages` names, then scaled by `loss_scale`."""
        advantage, target = self.of(x, all_reduce=all_reduce)
        over, by = self._normalization, type(self).__name__
        if over != "none":
            group = x.need("group", by=by) if over == "group" else None
            decided = x.decided(by=by)
            advantage = normalize_advantages(advantage, decided, all_reduce, over=over, group=group, **self._how())
        if self.loss_scale != "none":
            scale = loss_scale(self._unit(x), x.decided(by=by), all_reduce=all_reduce)
            advantage = advantage * scale.to(advantage.dtype)[:, None]
        return advantage, target

    def _unit(self, x: CreditInputs) -> Tensor:
        """The number of what counts once, `[B]`."""
        by = type(self).__name__
        if self.loss_scale == "group":
            return x.need("group", by=by)
        if self.loss_scale == "episode" and x.episode is not None:
            return pairs(x.need("group", by=by), x.episode)
        decided = x.decided(by=by)
        return torch.arange(len(decided), device=decided.device)

    def _how(self) -> Mapping[str, Any]:
        """`unbiased` and `eps` of the normalisation, where they are not the usual ones."""
        return {}

    @property
    def _normalization(self) -> Normalization:
        over = self.normalize_advantages
        return over if isinstance(over, str) else "batch" if over else "none"

    @abstractmethod
    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor | None]:
        """Advantages and value targets of tensors, each `[B, T]`, not normalised yet; no targets (None) without a critic."""
