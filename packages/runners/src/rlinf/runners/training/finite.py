"""Values that are not finite: refused where they enter training, and counted where they made an optimizer step be skipped."""

from __future__ import annotations

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
        values: `[B, T]`; None is fine.
        trajectory: whose they are.
        place: the worker that found it.
        remedy: where to look.

    Raises:
        NonFiniteError: one is; the message names the first of them.
    """
    if values is None:
        return
    wrong = (~values.isfinite() & trajectory.mask).nonzero()
    if len(wrong):
        row, column = (int(index) for index in wrong[0])
        where = f"decision {column} of row {row} (group {int(trajectory.group[row])})"
        found = f"expected a finite {name}, found {float(values[row, column]):g} for {where}"
        raise NonFiniteError(place, f"{found}, and {len(wrong)} such of {int(trajectory.mask.sum())} in all", remedy)


def check_credit(credit: Credit[Tensor], trajectory: Trajectory[Tensor], *, place: str) -> None:
    """Refuses an advantage or a target that is infinite or not a number, though every reward is finite.

    Raises:
        NonFiniteError: one is.
    """
    value = None if trajectory.value is None else trajectory.value[:, : trajectory.horizon]
    check_finite("value", value, trajectory, place=place, remedy="The critic has diverged: lower actor.optim.value_lr or lr.")
    for name, values in (("advantage", credit.advantage), ("target of the critic", credit.target)):
        check_finite(name, values, trajectory, place=place, remedy="Look at algorithm.adv_type.")


_CUT_OFF: Final = "algorithm.overlong_filtering left out"


class SkippedSteps:
    """How many optimizer steps of a run changed no weight, by `train/skipped` of its iterations."""

    def __init__(self) -> None:
        self._iterations = 0
        self._lost = 0
        self._cut_off = 0

    def add(self, scalars: Mapping[str, float]) -> list[str]:
        """Counts an iteration; what is to be said of it, if anything."""
        share, cut_off = scalars.get("train/skipped", 0.0), scalars.get("rollout/overlong_filtered", 0.0) >= 1.0
        self._iterations += 1
        self._lost += share >= 1.0
        self._cut_off += share >= 1.0 and cut_off
        why = f"{_CUT_OFF} all responses" if cut_off else "gradients are not finite, or nothing had weight"
        return [f"skipped {share:.0%} of optimizer steps: {why}"] if share > 0 else []

    def check(self) -> None:
        """Refuses to call a run done in which nothing was learned.

        Raises:
            NonFiniteError: every optimizer step was skipped.
        """
        if self._iterations and self._lost == self._iterations:
            problem = f"every optimizer step of {self._iterations} iterations was skipped, so that no weight has changed"
            remedy = "Gradients were not finite, or nothing had weight: look at train/loss and train/grad_norm in metrics.jsonl."
            if self._cut_off:
                remedy = f"In {self._cut_off} of them {_CUT_OFF} all responses: raise rollout.sampling_params.max_new_tokens."
            raise NonFiniteError("train/skipped", problem, remedy)
