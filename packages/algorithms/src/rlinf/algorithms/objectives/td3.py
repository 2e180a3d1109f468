"""Twin delayed deep deterministic policy gradient, with and without behaviour cloning; DDPG is its special case.

DDPG: one critic, no noise on the target's action (`std` 0), and an actor that is updated every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_choice, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap, aggregate_q, td_target
from rlinf.algorithms.objectives.imitation import squared_distance
from rlinf.algorithms.objectives.rows import Aggregate, Rows, coefficient
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import LossOutput
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor

ActorAggregate = Literal["first", "min", "mean"]
"""What the actor follows: the first critic as in the paper, or several."""


@takes_tensors
def smoothed_action(
    action: Tensor,
    *,
    std: float,
    noise_clip: float,
    low: float | Tensor,
    high: float | Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """The target actor's action with clipped noise, so that a narrow peak of the critic is not worth chasing.

    a′ = clip(μ̄(s′) + clip(σ ε, −c, c), low, high),   ε ~ N(0, 1)

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), eq. 14, arXiv:1802.09477.

    Args:
        action: `[B, *]`, μ̄(s′).
        std: σ ≥ 0, in units of action; 0 for DDPG.
        noise_clip: c ≥ 0, in units of action.
        low: the least action, a number or the shape of the last axes.
        high: the greatest.
        generator: of ε, on the device of `action`; None for the global one.

    Returns:
        The shape of `action`, no gradient.

    Raises:
        ConfigError: a hyper-parameter is out of range.
    """
    expect_range("smoothed_action(std)", std, 0.0, float("inf"))
    expect_range("smoothed_action(noise_clip)", noise_clip, 0.0, float("inf"))
    centre = at_least_float32(action.detach())
    noise = std * torch.randn(centre.shape, generator=generator, dtype=centre.dtype, device=centre.device)
    smooth = centre + noise.clamp(-noise_clip, noise_clip)
    # `clamp` takes two numbers or two tensors, and not one of each.
    return smooth.clamp(torch.as_tensor(low).to(smooth), torch.as_tensor(high).to(smooth))


@takes_tensors
def td3_target(
    reward: Tensor,
    terminated: Tensor,
    q_next: Tensor,
    *,
    gamma: float | Tensor,
    aggregate: Aggregate = "min",
    subset: Tensor | Sequence[int] | None = None,
    bootstrap: Bootstrap = "standard",
) -> Tensor:
    """What the critics should say, with the more pessimistic of two target critics.

    y = r + γ (1 − terminated) minₙ Q̄ₙ(s′, a′),   a′ = smoothed action

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), eq. 10 and 15, arXiv:1802.09477.
    Arguments, returns and errors are those of `sac_target`; `q_next` is of the next state and `smoothed_action`.
    """
    value = aggregate_q(q_next, aggregate=aggregate, subset=subset)
    return td_target(reward, terminated, value, gamma=gamma, bootstrap=bootstrap)


@takes_tensors
def td3_actor_loss(
    q: Tensor, *, scale: float | Tensor = 1.0, aggregate: ActorAggregate = "first", weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """What a deterministic actor minimises.

    L = −λ Q₁(s, μ(s))

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), alg. 1, arXiv:1802.09477. The
    gradient reaches the actor through `q`, by the action.

    Args:
        q: `[B, N]`, the critics on the actor's action; differentiable.
        scale: λ ≥ 0, taken without its gradient: 1, or `td3_bc_scale` of the whole batch.
        aggregate: "first", "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `actor_q`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("td3_actor_loss", q.shape[0], weight, q)
    value = _followed(rows.take("q", q, None), aggregate)
    loss = -coefficient("td3_actor_loss(scale)", scale) * value
    return rows.output(loss, {"actor_loss": loss, "actor_q": value})


@takes_tensors
def td3_bc_scale(
    q: Tensor,
    *,
    alpha: float = 2.5,
    aggregate: ActorAggregate = "first",
    weight: Tensor | None = None,
    all_reduce: AllReduce | None = None,
) -> Tensor:
    """How much Q counts beside behaviour cloning, so that its unit does not matter.

    λ = α / (1/B Σᵢ |Q₁(sᵢ, μ(sᵢ))|)

    Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (2021), eq. 5, arXiv:2106.06860. It is a
    statistic of the whole batch: compute it once, before the batch is split.

    Args:
        q: `[B, N]`, the critics on the actor's action.
        alpha: α ≥ 0.
        aggregate: the same as that of the loss.
        weight: `[B]`; rows of weight 0 don't count, the others count alike.
        all_reduce: sums a tensor over ranks; None if there is one.

    Returns:
        `[]`, no gradient; α where every Q is 0 or nothing counts.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    expect_range("td3_bc_scale(alpha)", alpha, 0.0, float("inf"))
    rows = Rows.of("td3_bc_scale", q.shape[0], weight, q)
    size = _followed(rows.take("q", q.detach(), None), aggregate).abs()
    sums = torch.stack([size.sum(), (rows.weight != 0).sum().to(size.dtype)])
    total, count = (sums if all_reduce is None else all_reduce(sums)).unbind()
    # A critic that says 0 everywhere gives no scale; α alone then weighs Q, which is 0.
    return alpha * torch.where(total > 0, count / total, 1.0)


@takes_tensors
def td3_bc_actor_loss(
    q: Tensor,
    action: Tensor,
    action_data: Tensor,
    *,
    scale: float | Tensor,
    bc_weight: float | Tensor = 1.0,
    executed: Tensor | None = None,
    aggregate: ActorAggregate = "first",
    weight: Tensor | None = None,
) -> LossOutput[Tensor]:
    """What a deterministic actor minimises that must stay near the data, or near what another policy proposes.

    L = −λ Q₁(s, μ(s)) + β 1/A Σ (μ(s) − a)²

    Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning" (2021), eq. 4, arXiv:2106.06860, where β is 1; Xu et
    al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (2026), arXiv:2604.23073, where a is the proposal.
    The square is averaged over the elements of an action: neither K nor A enters its size.

    Args:
        q: `[B, N]`, the critics on `action`; differentiable.
        action: `[B, A]` or `[B, K, A]`, μ(s); differentiable.
        action_data: the same shape, a.
        scale: λ ≥ 0, taken without its gradient: `td3_bc_scale` of the whole batch.
        bc_weight: β ≥ 0, taken without its gradient.
        executed: `[B, K]` bool, the steps of a chunk that count; None for all.
        aggregate: "first", "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `actor_q`; `bc_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("td3_bc_actor_loss", q.shape[0], weight, q)
    value = _followed(rows.take("q", q, None), aggregate)
    clone = squared_distance(rows, action, action_data, executed)
    near = coefficient("td3_bc_actor_loss(bc_weight)", bc_weight) * clone
    loss = near - coefficient("td3_bc_actor_loss(scale)", scale) * value
    return rows.output(loss, {"actor_loss": loss, "actor_q": value, "bc_loss": clone})


@takes_tensors
def reference_dropout(rows: Tensor, *, prob: float, generator: torch.Generator | None) -> Tensor:
    """The transitions in which an actor is not told what another policy proposes, so that it does not only copy it.

    m = [u < p],   u ~ U[0, 1)

    Xu et al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (2026), arXiv:2604.23073.

    Args:
        rows: `[B, *]`, of which there are as many.
        prob: p in [0, 1].
        generator: of u, on the device of `rows`; None for the global one.

    Returns:
        `[B]` bool.

    Raises:
        ConfigError: `prob` is out of range.
    """
    expect_range("reference_dropout(prob)", prob, 0.0, 1.0)
    return torch.rand(rows.shape[0], generator=generator, dtype=torch.float64, device=rows.device) < prob


def linear_weight(update: int, *, initial: float, final: float | None, updates: int) -> float:
    """A weight that goes from one number to another as a line, and stays there.

    w = w₀ + (w₁ − w₀) min(1, n / N)

    Args:
        update: n ≥ 0, how many updates there were.
        initial: w₀ ≥ 0.
        final: w₁ ≥ 0; None: w₀.
        updates: N ≥ 1.

    Raises:
        ConfigError: an argument is out of range.
    """
    expect_at_least("linear_weight(update)", update, 0)
    expect_at_least("linear_weight(updates)", updates, 1)
    for name, value in (("initial", initial), ("final", final)):
        expect_range(f"linear_weight({name})", value, 0.0, float("inf"))
    return initial if final is None else initial + (final - initial) * min(1.0, update / updates)


def _followed(q: Tensor, aggregate: ActorAggregate) -> Tensor:
    expect_choice("td3_actor_loss(aggregate)", aggregate, ("first", "min", "mean"))
    return q.select(1, 0) if aggregate == "first" else aggregate_q(q, aggregate=aggregate)
