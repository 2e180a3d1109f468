"""Values that are not finite: refused where they enter training, and counted where they made an optimizer step be skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rlinf.core.data import Credit, Trajectory
from rlinf.core.errors import NonFiniteError

if TYPE_CHECKING:
    from torch import Tensor


def check_finite(name: str, values: Tensor | None, trajectory: Trajectory[Tensor], *, place: str, remedy: str) -> None:
    """Refuses a reward, an advantage or the like that is infinite or not a number.

    Args:
        name: what it is, such as "reward".
        values: `[B, T, …]`; None is fine.
        trajectory: whose they are.
        place: the worker that found it.
        remedy: where to look.

    Raises:
        NonFiniteError: one is; the message names the first of them.
    """
    if values is None:
        return
    # What a decision has several of, such as a log-probability for each action of a chunk, counts as one.
    wrong = (~values.isfinite().flatten(2).all(-1) if values.ndim > 2 else ~values.isfinite()).logical_and_(trajectory.mask)
    if bool(wrong.any()):
        wrong = wrong.nonzero()
        row, column = (int(index) for index in wrong[0])
        value = values[row, column].flatten()
        first = float(value[~value.isfinite()][0])
        where = f"decision {column} of row {row} (group {int(trajectory.group[row])})"
        found = f"expected a finite {name}, found {first:g} for {where}"
        raise NonFiniteError(place, f"{found}, and {len(wrong)} such of {int(trajectory.mask.sum())} in all", remedy)


def check_logprobs(trajectory: Trajectory[Tensor], *, place: str) -> None:
    """Refuses a log-probability that is infinite or not a number, from which every loss would be none.

    Raises:
        NonFiniteError: one is; the message says whose it is.
    """
    remedy = "Look at what the policy observed there (nothing beyond its range?), and at train/loss of the iterations before."
    scored = {"that the rollout gave": trajectory.logprob, "under the weights before the update": trajectory.proximal}
    for whose, values in (scored | {"under the reference policy": trajectory.reference}).items():
        check_finite(f"log-probability {whose}", values, trajectory, place=place, remedy=remedy)


def check_credit(credit: Credit[Tensor], trajectory: Trajectory[Tensor], *, place: str) -> None:
    """Refuses an advantage or a target that is infinite or not a number, though every reward is finite.

    Raises:
        NonFiniteError: one is.
    """
    value = None if trajectory.value is None else trajectory.value[:, : trajectory.horizon]
    check_finite("value", value, trajectory, place=place, remedy="The critic has diverged: lower actor.optim.value_lr or lr.")
    for name, values in (("advantage", credit.advantage), ("target of the critic", credit.target)):
        check_finite(name, values, trajectory, place=place, remedy="Look at algorithm.adv_type.")


_NAMED: Final = 4
"""As many numbers are named that are none."""
_CUT_OFF: Final = "algorithm.overlong_filtering left out"


class SkippedSteps:
    """How many optimizer steps of a run changed no weight, by `train/skipped` of its iterations."""

    def __init__(self) -> None:
        self._iterations = 0
        self._lost = 0
        self._cut_off = 0
        self._first = ""
        """The numbers of the first skipped step that say where it failed."""

    def add(self, scalars: Mapping[str, float]) -> list[str]:
        """Counts an iteration; what is to be said of it, if anything."""
        share, cut_off = scalars.get("train/skipped", 0.0), scalars.get("rollout/overlong_filtered", 0.0) >= 1.0
        self._iterations += 1
        self._lost += share >= 1.0
        self._cut_off += share >= 1.0 and cut_off
        why = f"{_CUT_OFF} all responses" if cut_off else "gradients are not finite, or nothing had weight"
        # The loss and what it measures come before the gradient, so their names say how far the numbers were good.
        found = [
            f"{name} is {value:g}" for name, value in scalars.items() if name.startswith("train/") and not math.isfinite(value)
        ]
        if found and share > 0:
            why = f"{', '.join(found[:_NAMED])}{', …' if len(found) > _NAMED else ''}"
            self._first = self._first or f", first in iteration {self._iterations}: {why}"
        return [f"skipped {share:.0%} of optimizer steps: {why}"] if share > 0 else []

    def check(self) -> None:
        """Refuses to call a run done in which nothing was learned.

        Raises:
            NonFiniteError: every optimizer step was skipped.
        """
        if self._iterations and self._lost == self._iterations:
            problem = (
                f"every optimizer step of {self._iterations} iterations was skipped, so that no weight has changed{self._first}"
            )
            remedy = "Gradients were not finite, or nothing had weight: look at train/loss and train/grad_norm in metrics.jsonl."
            if self._cut_off:
                remedy = f"In {self._cut_off} of them {_CUT_OFF} all responses: raise rollout.sampling_params.max_new_tokens."
            raise NonFiniteError("train/skipped", problem, remedy)
