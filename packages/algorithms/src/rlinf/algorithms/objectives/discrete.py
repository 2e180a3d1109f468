"""Q-learning and soft actor-critic where actions can be counted, so that expectations are sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.critic import Bootstrap, aggregate_q, critic_loss, td_target
from rlinf.algorithms.objectives.rows import Aggregate, Rows, coefficient, expect_rows
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def double_q_target(
    reward: Tensor,
    terminated: Tensor,
    q_next: Tensor,
    q_next_selector: Tensor,
    *,
    gamma: float | Tensor,
    bootstrap: Bootstrap = "standard",
) -> Tensor:
    """What a critic of countable actions should say, where one network chooses and another judges.

    y = r + γ (1 − terminated) Q̄(s′, argmaxₐ Q(s′, a))

    van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning" (2016), eq. 4, arXiv:1509.06461. Arguments, returns and
    errors are those of `td_target`, but that the value is found in what two critics say of all A actions of the next state, each
    `[B, A]`: the online one, `q_next_selector`, chooses, and the target one, `q_next`, judges.
    """
    expect_rows("double_q_target(q_next)", q_next, q_next.shape[0], None)
    expect_rows("double_q_target(q_next_selector)", q_next_selector, *q_next.shape)
    chosen = at_least_float32(q_next).gather(1, q_next_selector.argmax(1, keepdim=True)).squeeze(1)
    return td_target(reward, terminated, chosen, gamma=gamma, bootstrap=bootstrap)


@takes_tensors
def q_learning_loss(
    q: Tensor, action: Tensor, target: Tensor, *, huber_delta: float | None = None, weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """How far the critic of countable actions is from its target, for the action that was taken.

    L = ℓ(Q(s, a) − y)

    Mnih et al., "Human-Level Control through Deep Reinforcement Learning" (2015), alg. 1, doi:10.1038/nature14236, whose
    clipped error is `huber_delta` 1.

    Args:
        q: `[B, A]`; differentiable.
        action: `[B]` int in [0, A).
        target: `[B]`, y, taken without its gradient.
        huber_delta: δ > 0; None for the square alone.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight, with the metrics of `critic_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `huber_delta` is not positive.
    """
    rows = Rows.of("q_learning_loss", q.shape[0], weight, q)
    # `take` makes float32 of it, which is exact up to 2²⁴ actions.
    index = rows.take("action", action).to(torch.int64)
    taken = rows.take("q", q, None).gather(1, index[:, None])
    return critic_loss(taken, target, huber_delta=huber_delta, weight=weight)


@takes_tensors
def expected_logprob(logprob: Tensor) -> Tensor:
    """The mean log-probability of a policy over countable actions: minus its entropy.

    Σₐ π(a|s) log π(a|s),   0 log 0 = 0

    Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (2019), eq. 11, arXiv:1910.07207: give it to
    `temperature_loss` as `logprob`.

    Args:
        logprob: `[B, A]`, normalised; −inf for an action that is not allowed; differentiable.

    Returns:
        `[B]`, in at least float32.

    Raises:
        ShapeError: `logprob` is not `[B, A]`.
    """
    expect_rows("expected_logprob(logprob)", logprob, logprob.shape[0], None)
    prob, finite = _allowed(at_least_float32(logprob))
    return (prob * finite).sum(1)


@takes_tensors
def discrete_sac_target(
    reward: Tensor,
    terminated: Tensor,
    q_next: Tensor,
    logprob_next: Tensor,
    *,
    gamma: float | Tensor,
    alpha: float | Tensor,
    aggregate: Aggregate = "min",
    backup_entropy: bool = True,
    bootstrap: Bootstrap = "standard",
) -> Tensor:
    """What the critics of soft actor-critic should say, where actions can be counted.

    y = r + γ (1 − terminated) Σₐ π(a|s′) (aggₙ Q̄ₙ(s′, a) − α log π(a|s′))

    Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (2019), eq. 10, arXiv:1910.07207. Arguments, returns and errors
    are those of `sac_target`, but for what is known of all A actions: `q_next` is `[B, A, N]`, N target critics on the next state,
    and `logprob_next` is `[B, A]`, the policy there, −inf for an action that is not allowed.
    """
    expect_rows("discrete_sac_target(q_next)", q_next, q_next.shape[0], None, None)
    expect_rows("discrete_sac_target(logprob_next)", logprob_next, *q_next.shape[:2])
    prob, finite = _allowed(at_least_float32(logprob_next))
    value = _aggregated(q_next, aggregate)
    temper = coefficient("discrete_sac_target(alpha)", alpha)
    if backup_entropy:
        value = value - temper * finite
    return td_target(reward, terminated, (prob * value).sum(1), gamma=gamma, bootstrap=bootstrap)


@takes_tensors
def discrete_sac_actor_loss(
    logprob: Tensor, q: Tensor, *, alpha: float | Tensor, aggregate: Aggregate = "min", weight: Tensor | None = None
) -> LossOutput[Tensor]:
    """What the actor of soft actor-critic minimises, where actions can be counted.

    L = Σₐ π(a|s) (α log π(a|s) − aggₙ Qₙ(s, a))

    Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (2019), eq. 12, arXiv:1910.07207. The gradient reaches the
    actor by its probabilities alone.

    Args:
        logprob: `[B, A]`, normalised; −inf for an action that is not allowed; differentiable.
        q: `[B, A, N]`, N critics, taken without their gradient.
        alpha: temperature ≥ 0, or `[]`, taken without its gradient.
        aggregate: "min" or "mean" over critics.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight. Metrics: `actor_loss`; `entropy`; `actor_q`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of range.
    """
    rows = Rows.of("discrete_sac_actor_loss", q.shape[0], weight, q)
    value = _aggregated(rows.take("q", q.detach(), None, None), aggregate)
    prob, finite = _allowed(rows.take("logprob", logprob, value.shape[1]))
    entropy, mean_q = -(prob * finite).sum(1), (prob * value).sum(1)
    loss = -coefficient("discrete_sac_actor_loss(alpha)", alpha) * entropy - mean_q
    return rows.output(loss, {"actor_loss": loss, "entropy": entropy, "actor_q": mean_q})


def _allowed(logprob: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and finite log-probabilities; both 0 for an action that is not allowed, and without a gradient."""
    allowed = ~logprob.isneginf()
    finite = torch.where(allowed, logprob, 0.0)
    # exp of the 0 that stands for −∞ is 1, hence the second select; π log π itself would be 0 · ∞.
    return torch.where(allowed, finite.exp(), 0.0), finite


def _aggregated(q: Tensor, aggregate: Aggregate) -> Tensor:
    return aggregate_q(q.flatten(0, 1), aggregate=aggregate).reshape(q.shape[:2])
