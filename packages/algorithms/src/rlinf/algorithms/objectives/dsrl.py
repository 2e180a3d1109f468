"""DSRL: soft actor-critic over the initial noise of a frozen flow or diffusion policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, distance
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap, aggregate_q
from rlinf.algorithms.objectives.rows import Aggregate, Rows, expect_rows
from rlinf.algorithms.objectives.sac import sac_target
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


def chunk_discount(gamma: float, steps: int | Tensor) -> float | Tensor:
    """The discount of a decision that lasts several control steps.

    γᵏ

    Sutton et al., "Between MDPs and Semi-MDPs" (1999), sec. 2, doi:10.1016/S0004-3702(99)00052-1.

    Args:
        gamma: discount of one control step in [0, 1].
        steps: k ≥ 1; or `[B]` int, how many steps of each chunk were executed.

    Returns:
        γᵏ, a number or `[B]` in float64, like `steps`.

    Raises:
        ConfigError: an argument is out of range.
    """
    expect_range("chunk_discount(gamma)", gamma, 0.0, 1.0)
    if isinstance(steps, torch.Tensor):
        return gamma ** steps.double()
    expect_at_least("chunk_discount(steps)", steps, 1)
    return gamma**steps


@takes_tensors
def bounded_noise(raw: Tensor, logprob: Tensor, *, bound: float = 1.0) -> tuple[Tensor, Tensor]:
    """Noise that stays where the frozen policy has seen any, with its log-probability.

    w = b tanh(u),   log π(w) = log N(u) − Σ log(b (1 − tanh² u)),   log(1 − tanh² u) = 2 (log 2 − u − softplus(−2 u))

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), eq. 26, arXiv:1812.05905; the bound as in
    Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (2025), arXiv:2506.15799.

    Args:
        raw: `[B, *]`, u; differentiable.
        logprob: `[B]`, log N(u), summed over all that follows B; differentiable.
        bound: b > 0.

    Returns:
        The noise w like `raw`, and its log-probability `[B]`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `bound` is not positive.
    """
    expect_range("bounded_noise(bound)", bound, 0.0, float("inf"), open_low=True)
    expect_rows("bounded_noise(logprob)", logprob, raw.shape[0])
    u = at_least_float32(raw)
    # Not log(1 − tanh² u), which is −∞ in float32 from u = 10 on.
    shrink = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u)) + math.log(bound)
    return bound * u.tanh(), at_least_float32(logprob) - shrink.reshape(raw.shape[0], -1).sum(1)


@takes_tensors
def dsrl_target(
    reward: Tensor,
    terminated: Tensor,
    q_next: Tensor,
    logprob_next: Tensor,
    *,
    gamma: float,
    steps: int | Tensor,
    alpha: float | Tensor,
    aggregate: Aggregate = "mean",
    subset: Tensor | Sequence[int] | None = None,
    backup_entropy: bool = True,
    bootstrap: Bootstrap = "standard",
) -> Tensor:
    """What the critics of noise should say, of decisions that last several control steps.

    y = r + γᵏ (1 − terminated) (aggₙ Q̄ₙ(s′, w′) − α log π(w′|s′)),   w′ ~ π(·|s′)

    Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (2025), sec. 4,
    arXiv:2506.15799. Arguments, returns and errors are those of `sac_target`, of fresh noise for a fresh action, but for two:
    `gamma` is the discount of one control step, and `steps` is k ≥ 1, or `[B]` int, how many steps of each chunk were executed.
    """
    discount = chunk_discount(gamma, steps)
    if isinstance(discount, torch.Tensor):
        expect_shape("dsrl_target(steps)", discount, reward.shape)
        # In float64 it would make the target so.
        discount = discount.to(at_least_float32(reward).dtype)
    return sac_target(
        reward,
        terminated,
        q_next,
        logprob_next,
        gamma=discount,
        alpha=alpha,
        aggregate=aggregate,
        subset=subset,
        backup_entropy=backup_entropy,
        bootstrap=bootstrap,
    )


@takes_tensors
def noise_critic_loss(
    q_noise: Tensor, q_action: Tensor, *, aggregate: Aggregate = "mean", weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """How far the critics of noise are from the critics of the actions that the noise becomes.

    L = Σₙ ½ (Qₙᵂ(s, w) − aggₘ Qₘᴬ(s, π_dp(s, w)))²,   w ~ N(0, I)

    Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (2025), sec. 4 (DSRL-NA),
    arXiv:2506.15799, there without the half.

    Args:
        q_noise: `[B, N]`, the critics of noise; differentiable.
        q_action: `[B, M]`, the critics of actions on the frozen policy's action for that noise, taken without their gradient.
        aggregate: "mean" or "min" over the critics of actions.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `noise_critic_loss`; `noise_q`; `action_q`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `aggregate` is neither of the two.
    """
    rows = Rows.of("noise_critic_loss", q_noise.shape[0], weight, q_noise)
    q = rows.take("q_noise", q_noise, None)
    teacher = aggregate_q(rows.take("q_action", q_action.detach(), None), aggregate=aggregate)
    loss = distance(q - teacher[:, None], None).sum(1)
    return rows.output(loss, {"noise_critic_loss": loss, "noise_q": q.mean(1), "action_q": teacher})
