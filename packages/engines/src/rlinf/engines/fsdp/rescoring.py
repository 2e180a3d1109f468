"""Re-scoring, and losses of the policy's own, as a module: what FSDP wraps, and where less precision begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import PolicyLoss
from rlinf.core.data import Batch
from rlinf.core.data.tree import tree_map
from rlinf.core.metrics import Statistic
from rlinf.core.protocols import Policy
from rlinf.engines.fsdp.config import FSDPConfig

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Scores(nn.Module):
    """Takes a batch and returns what FSDP can follow: a tuple of tensors, at least float32.

    Args:
        policy: whose `default_forward` this is.
        config: says in which precision it computes.
        device: where it computes.
    """

    def __init__(self, policy: nn.Module, config: FSDPConfig, device: torch.device) -> None:
        super().__init__()
        self.policy = policy
        self._inputs = config.mixed_precision.param_dtype
        self._autocast, self._device = config.amp_autocast, device

    def forward(
        self, batch: Batch[Tensor], loss: PolicyLoss | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] | tuple[Tensor, Tensor, Mapping[str, Statistic]]:
        """Log-probability, entropy, value and Σ π² of decisions; or what a loss makes of a batch: total, weight, metrics."""
        precision = DTYPES[self._autocast.precision]
        with torch.autocast(self._device.type, dtype=precision, enabled=self._autocast.enabled):
            if loss is not None:
                output = loss.of_policy(self.policy, self._cast(batch))
                return cast("Tensor", _precise(output.total)), cast("Tensor", _precise(output.weight)), output.metrics
            evaluation = cast("Policy", self.policy).default_forward(self._cast(batch))
        squares = _precise(evaluation.sum_pi_squared)
        logprob, entropy, value = (_precise(x) for x in (evaluation.logprob, evaluation.entropy, evaluation.value))
        return cast("Tensor", logprob), entropy, value, squares

    def _cast(self, batch: Batch[Tensor]) -> Batch[Tensor]:
        """The batch with its observations in the precision of the weights."""
        if self._inputs is None:
            return batch
        dtype = DTYPES[self._inputs]

        def cast_leaf(leaf: Any) -> Tensor:
            return leaf.to(dtype) if leaf.is_floating_point() else leaf

        # Only what the policy sees: what a loss compares with keeps its precision.
        trajectory = batch.trajectory
        return replace(batch, trajectory=replace(trajectory, context=tree_map(cast_leaf, trajectory.context)))


def _precise(tensor: Tensor | None) -> Tensor | None:
    """At least float32, in memory of its own: FSDP can't follow a view that is changed in place."""
    return None if tensor is None else tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)


def on_device(batch: Batch[Any], device: torch.device) -> Batch[Tensor]:
    """The batch as tensors on a device; the batch itself if it is there."""
    # The reward stands for all, as a batch is moved as a whole.
    reward = batch.trajectory.reward
    if isinstance(reward, Tensor) and reward.device == device:
        return batch

    def move(leaf: Any) -> Tensor:
        return torch.as_tensor(leaf, device=device)

    target = None if batch.credit.target is None else move(batch.credit.target)
    credit = replace(batch.credit, advantage=move(batch.credit.advantage), target=target)
    return Batch(trajectory=batch.trajectory.map(move), credit=credit)
