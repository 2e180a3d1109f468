"""CrossQ: critics with batch normalisation that see both ends of a transition in one pass, and no target network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap, critic_loss
from rlinf.algorithms.objectives.rows import Aggregate
from rlinf.algorithms.objectives.sac import sac_target
from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree, tree_combine
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def joint_batch(now: Tree[Tensor], after: Tree[Tensor]) -> Tree[Tensor]:
    """What the critics see: the transitions' first ends, then their second ends, so that both share the batch's statistics.

    x = [(s, a); (s′, a′)]

    Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"
    (2024), sec. 3, arXiv:1902.05605.

    Args:
        now: states and actions, each leaf `[B, *]`.
        after: next states and fresh actions, of the same structure.

    Returns:
        Each leaf `[2 B, *]`.

    Raises:
        ShapeError: two leaves differ in shape.
    """
    return tree_combine(_both_ends, [now, after])


def _both_ends(ends: Sequence[Tensor]) -> Tensor:
    now, after = ends
    if now.shape != after.shape:
        raise ShapeError("joint_batch(after)", f"expected shape {tuple(now.shape)}, found {tuple(after.shape)}")
    return torch.cat([now, after])


@takes_tensors
def joint_parts(q_joint: Tensor) -> tuple[Tensor, Tensor]:
    """What the critics said of each end: the inverse of `joint_batch`.

    Args:
        q_joint: `[2 B, N]`; differentiable.

    Returns:
        Q(s, a), differentiable, and Q(s′, a′) without a gradient; each `[B, N]`.

    Raises:
        ShapeError: `q_joint` has not two axes, or an odd number of rows.
    """
    if q_joint.dim() != 2 or q_joint.shape[0] % 2:
        raise ShapeError("joint_parts(q_joint)", f"expected [2 B, N], found {tuple(q_joint.shape)}")
    now, after = q_joint.chunk(2)
    return now, after.detach()


@takes_tensors
def crossq_critic_loss(
    q_joint: Tensor,
    reward: Tensor,
    terminated: Tensor,
    logprob_next: Tensor,
    *,
    gamma: float | Tensor,
    alpha: float | Tensor,
    aggregate: Aggregate = "min",
    backup_entropy: bool = True,
    bootstrap: Bootstrap = "standard",
    huber_delta: float | None = None,
    weight: Tensor | None = None,
) -> LossOutput[Tensor]:
    """How far the critics are from a target that they made themselves, in the same pass.

    [Q(s, a); Q(s′, a′)] = Q(x),   y = r + γ (1 − terminated) (aggₙ Qₙ(s′, a′) − α log π(a′|s′)),   L = Σₙ ½ (Qₙ(s, a) − y)²

    Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"
    (2024), sec. 3, arXiv:1902.05605. The second half is taken without its gradient. A pass must see whole transitions: batch
    statistics belong to a micro-batch, so a split changes what the critics say, though not this formula.

    Args:
        q_joint: `[2 B, N]`, the critics on `joint_batch`; differentiable.
        reward: `[B]`; of an action chunk, the sum over its steps.
        terminated: `[B]` bool, the task itself ended here.
        logprob_next: `[B]`, of the fresh actions.
        gamma: discount of one row in [0, 1], or `[B]`.
        alpha: temperature ≥ 0, or `[]`.
        aggregate: "min" or "mean" over critics.
        backup_entropy: whether the entropy belongs to the value.
        bootstrap: "standard"; or "always", also where terminated.
        huber_delta: δ > 0; None for the square alone.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight, with the metrics of `critic_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    q, q_next = joint_parts(q_joint)
    target = sac_target(
        reward,
        terminated,
        q_next,
        logprob_next,
        gamma=gamma,
        alpha=alpha,
        aggregate=aggregate,
        backup_entropy=backup_entropy,
        bootstrap=bootstrap,
    )
    return critic_loss(q, target, huber_delta=huber_delta, weight=weight)
