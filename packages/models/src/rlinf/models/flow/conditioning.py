"""A flow that is told which actions were good: learned with and without being told, and followed beyond what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.config import expect_range
from rlinf.core.data.offline import ADVANTAGE_LABELS
from rlinf.core.data.tree import Tree
from rlinf.models.flow.advantage_condition import AdvantageCondition
from rlinf.models.flow.draws import Source, draw
from rlinf.models.flow.field import Field

GOOD, BAD, UNCONDITIONAL = 1, 0, -1
"""The label of what was good, of what was not, and of a row that is not told."""


def condition_dropout(labels: Tensor, *, prob: float, generator: Source = None) -> Tensor:
    """Labels with some of them dropped, so that one network learns the conditional and the unconditional policy.

    c = −1 if u < p, else I,   u ~ U[0, 1)

    Ho and Salimans, "Classifier-Free Diffusion Guidance" (2022), alg. 1, arXiv:2207.12598, as in Physical Intelligence,
    "π*0.6: a VLA That Learns From Experience" (2025), arXiv:2511.14759.

    Args:
        labels: `[B]`, 1 good, 0 not.
        prob: p in [0, 1].
        generator: the source of u; torch's global one if None.

    Returns:
        `[B]` int64: as they were, or −1 (`UNCONDITIONAL`).

    Raises:
        ConfigError: `prob` is out of range.
    """
    expect_range("condition_dropout(prob)", prob, 0.0, 1.0)
    chance = draw(labels.shape, torch.rand, labels, generator)
    return torch.where(chance < prob, UNCONDITIONAL, labels.to(torch.int64))


def training_labels(condition: AdvantageCondition, env_obs: Tree[Any], like: Tensor, generator: Source = None) -> Tensor:
    """What each of some demonstrations is told while it is learned: its label, unless it has none or that is dropped.

    Args:
        condition: says how many are dropped.
        env_obs: observations by key; `ADVANTAGE_LABELS` `[B]` may be among them.
        like: `[B, *]`, on the device on which they are wanted.
        generator: as of `condition_dropout`.

    Returns:
        `[B]` int64, as of `condition_dropout`.
    """
    if not isinstance(env_obs, Mapping) or ADVANTAGE_LABELS not in env_obs:
        return torch.full((len(like),), UNCONDITIONAL, device=like.device)
    labels = torch.as_tensor(cast("Mapping[str, Any]", env_obs)[ADVANTAGE_LABELS], device=like.device)
    return condition_dropout(labels, prob=condition.unconditional_prob, generator=generator)


def one_hot_labels(labels: Tensor) -> Tensor:
    """What a network is shown of labels `[B]`: `[B, 2]`, good and not good; zeros for a row that is not told."""
    return torch.stack([labels == GOOD, labels == BAD], -1)


def classifier_free(conditional: Field, unconditional: Field, scale: float) -> Field:
    """A field that goes from what all data did to what the condition asks for, and beyond it with a scale above 1.

    v_β = v(x, τ | ∅) + β (v(x, τ | c) − v(x, τ | ∅))

    Ho and Salimans, "Classifier-Free Diffusion Guidance" (2022), eq. 6, arXiv:2207.12598, with β = 1 + w; for the velocity of a
    flow as in Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), arXiv:2511.14759.

    Args:
        conditional: the flow that is told c. What it says of hidden states is what the result says.
        unconditional: the flow that is not told; with β = 1 nobody asks it.
        scale: β ≥ 0.

    Raises:
        ConfigError: `scale` is negative.
    """
    expect_range("classifier_free(scale)", scale, 0.0, float("inf"))
    if scale == 1.0:
        return conditional

    def velocity(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        free, _ = unconditional(x, time)
        # A compiled network with CUDA graphs writes its next answer over this one.
        free = free.clone()
        told, hidden = conditional(x, time)
        return free + scale * (told - free), hidden

    return velocity
