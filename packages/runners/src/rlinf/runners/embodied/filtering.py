"""What teaches nothing is left out of training: episodes that were cut off, and groups in which nearly all rows agree."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlinf.core.data import Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.declarations import needs_of
from rlinf.core.metrics import Metric, Statistic
from rlinf.runners.embodied.algorithm import EmbodiedAlgorithmConfig
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.lazy import torch
from rlinf.runners.training.tensors import to_torch

if TYPE_CHECKING:
    from torch import Tensor


def without_cut_off(rows: Trajectory[Tensor], config: EmbodiedConfig) -> tuple[Trajectory[Tensor], dict[str, Statistic]]:
    """The rows with everything masked of episodes whose outcome nobody knows, where rows of a group are compared.

    The end of a rollout epoch cuts off what goes on, as groups are compared with `env.train.auto_reset: false` alone. An episode
    that began with the epoch had as many steps as those that it is compared with: not to have been solved in them is an outcome.
    One that began behind an early end had fewer, and its return would count as that of a failure in the baseline of its group.

    Args:
        rows: whole groups, with `episode` as `RowCollector` numbers them.
        config: whether any rows are compared, and how episodes are numbered.
    """
    train, compares = config.env.train, "group" in needs_of(config.algorithm.advantage) or config.algorithm.filter_rewards
    if not compares or rows.episode is None:
        return rows, {}
    # Numbers of episodes start anew at a multiple of T with each rollout epoch; see `RowCollector.finish`.
    late = rows.episode // train.total_num_envs % train.max_steps_per_rollout_epoch != 0
    ended = ((rows.terminated | rows.truncated) & rows.mask).any(1)
    cut_off = late & ~ended
    told: dict[str, Statistic] = {"cut_off_rows": Metric(float(cut_off.sum()), len(cut_off))}
    return replace(rows, mask=rows.mask & ~cut_off[:, None]), told


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
    counted = rows.mask.any(1).double()
    # Of a group without any row that counts the mean is no number, and within no bounds.
    mean = torch.bincount(index, weights=score) / torch.bincount(index, weights=counted)
    kept = (mean >= lower) & (mean <= upper)
    filtered: dict[str, Statistic] = {"filtered_groups": Metric(float((~kept).sum()), len(kept))}
    return replace(rows, mask=rows.mask & kept[index][:, None]), filtered
