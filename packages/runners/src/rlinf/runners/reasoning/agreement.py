"""Whether the trainer says of responses what the rollout said of them, before the first update and ever after."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlinf.core.data import Scores
from rlinf.core.metrics import Metric, Statistic
from rlinf.core.trajectory import Trajectory
from rlinf.runners.reasoning.rescoring import Found
from rlinf.runners.reasoning.scoring import scattered
from rlinf.runners.tensors import to_torch


def drift(trajectory: Trajectory[Tensor], found: Found, *, version: int) -> dict[str, Statistic]:
    """How far the trainer's log-probabilities are from the rollout's, for tokens of the very weights that it has.

    Args:
        trajectory: what the rollout said.
        found: what the trainer says of some of it.
        version: the trainer's.
    """
    total, largest, count = 0.0, 0.0, 0
    for rows, evaluation in found:
        index, horizon = to_torch(rows), evaluation.logprob.shape[1]
        same = trajectory.mask[index, :horizon] & (trajectory.version[index, :horizon] == version)
        apart = (evaluation.logprob.cpu() - trajectory.logprob[index, :horizon]).abs()[same]
        total, count = total + float(apart.sum()), count + apart.numel()
        largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
    return {"logprob_drift": Metric(total, float(count)), "logprob_drift_max": Metric(largest)}


def first_scores(
    trajectory: Trajectory[Tensor],
    found: Found,
    *,
    version: int,
    all_tokens: bool,
    rescore: Callable[[float], Found] | None,
) -> Scores[Tensor]:
    """What a gate looks at before the first update.

    Args:
        trajectory: what the rollout said.
        found: what the trainer says of all of it.
        version: the trainer's.
        all_tokens: whether every token must be of the trainer's weights; otherwise older ones, which responses that go on after
            an update hold, don't count.
        rescore: the same as `found` at a temperature that is multiplied by a factor; None if nobody can.
    """
    mask = trajectory.mask if all_tokens else trajectory.mask & (trajectory.version >= version)

    def again(factor: float) -> Tensor:
        return torch.empty(0) if rescore is None else scattered(trajectory, iter(rescore(factor)))[0]

    return Scores(
        rollout=trajectory.logprob,
        trainer=scattered(trajectory, iter(found))[0],
        mask=mask,
        version=trajectory.version,
        trainer_version=version,
        rescore=None if rescore is None else again,
    )
