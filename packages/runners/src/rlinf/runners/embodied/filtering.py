"""Groups that teach nothing are left out of training: those in which nearly every episode succeeds, or nearly every one fails."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlinf.core.arrays import as_numpy
from rlinf.core.metrics import Metric, Statistic
from rlinf.core.trajectory import Batch, Trajectory
from rlinf.runners.embodied.schema import EmbodiedAlgorithmConfig
from rlinf.runners.training.tensors import to_torch


def without_filtered(rows: Trajectory[Tensor], config: EmbodiedAlgorithmConfig) -> tuple[Trajectory[Tensor], dict[str, Statistic]]:
    """The rows with everything masked in groups whose mean return is out of bounds, and the share of such groups.

    A row's return is the sum of its rewards, as group advantages see it. Of a task whose only reward is 1 for success the mean
    over a group is its success rate.

    Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025), §3.2, arXiv:2503.14476, where groups that
    all agree are drawn again; here an iteration trains on what is left.

    Args:
        rows: whole groups.
        config: whether, and the bounds.
    """
    if not config.filter_rewards:
        return rows, {}
    lower = -math.inf if config.rewards_lower_bound is None else config.rewards_lower_bound
    upper = math.inf if config.rewards_upper_bound is None else config.rewards_upper_bound
    _, found = np.unique(as_numpy(rows.group), return_inverse=True)
    index = to_torch(found)
    score = (rows.reward * rows.mask).sum(1).double()
    size = torch.bincount(index)
    mean = torch.bincount(index, weights=score) / size
    kept = (mean >= lower) & (mean <= upper)
    filtered: dict[str, Statistic] = {"filtered_groups": Metric(float((~kept).sum()), len(kept))}
    return replace(rows, mask=rows.mask & kept[index][:, None]), filtered


def uncounted(batch: Batch[Tensor]) -> Batch[Tensor]:
    """One row of a batch that counts nowhere: what a rank with nothing to train on keeps pace with."""
    one = batch.rows(slice(0, 1))
    return replace(one, trajectory=replace(one.trajectory, mask=torch.zeros_like(one.trajectory.mask)))
