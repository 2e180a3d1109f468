"""What all critics of off-policy learning share: one value from several, the one-step target, and the distance to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rlinf.algorithms.checks import expect_choice, expect_fraction, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, distance
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.objectives.rows import Aggregate, Rows, expect_rows
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Bootstrap = Literal["standard", "always"]
"""Whether the value of the next state counts only where the task went on, or always."""


@takes_tensors
def aggregate_q(q: Tensor, *, aggregate: Aggregate = "min", subset: Tensor | Sequence[int] | None = None) -> Tensor:
    """One value from those of several critics.

    Q = minₙ Qₙ   or   Q = 1/|M| Σₙ Qₙ,   n ∈ M

    The minimum: Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), eq. 10,
    arXiv:1802.09477; over a random subset M: Chen et al., "Randomized Ensembled Double Q-Learning" (2021), alg. 1,
    arXiv:2101.05982.

    Args:
        q: `[B, N]`, what N critics say; differentiable. Equal minima share the gradient.
        aggregate: "min" or "mean".
        subset: the critics that are asked, by index; None for all.

    Returns:
        `[B]`, in at least float32.

    Raises:
        ShapeError: `q` is not `[B, N]`, or nobody is asked.
        ConfigError: `aggregate` is neither of the two.
    """
    expect_choice("aggregate_q(aggregate)", aggregate, ("min", "mean"))
    expect_rows("aggregate_q(q)", q, q.shape[0], None)
    asked = at_least_float32(q)
    if subset is not None:
        asked = asked.index_select(1, torch.as_tensor(subset, dtype=torch.int64, device=q.device))
    if asked.shape[1] == 0:
        raise ShapeError("aggregate_q(q)", "expected at least one critic, found none")
    return asked.amin(1) if aggregate == "min" else asked.mean(1)


@takes_tensors
def td_target(
    reward: Tensor, terminated: Tensor, value_next: Tensor, *, gamma: float | Tensor, bootstrap: Bootstrap = "standard"
) -> Tensor:
    """What a critic should say: the reward, and the discounted value of what follows.

    y = r + γ (1 − terminated) V(s′);   with bootstrap "always": y = r + γ V(s′)

    Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), eq. 6.2. A truncated transition bootstraps, as it
    should: so only `terminated` is asked for, and `value_next` must be that of the observation before any reset.

    Args:
        reward: `[B]`; of an action chunk, the sum over its steps.
        terminated: `[B]` bool, the task itself ended here.
        value_next: `[B]`; where terminated it may be anything.
        gamma: discount of one row in [0, 1], or `[B]` if rows differ (γᵏ for k steps).
        bootstrap: "standard"; or "always" for tasks that go on after success.

    Returns:
        `[B]`, no gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `gamma` or `bootstrap` is out of range.
    """
    expect_choice("td_target(bootstrap)", bootstrap, ("standard", "always"))
    expect_rows("td_target(reward)", reward, reward.shape[0])
    for name, x in (("terminated", terminated), ("value_next", value_next)):
        expect_rows(f"td_target({name})", x, reward.shape[0])
    if isinstance(gamma, torch.Tensor):
        expect_shape("td_target(gamma)", gamma, reward.shape)
    expect_fraction("td_target(gamma)", gamma)
    after = at_least_float32(value_next)
    if bootstrap == "standard":
        # A select and no product: 0 · NaN is NaN, and what stands there may be anything.
        after = torch.where(terminated.bool(), 0.0, after)
    return (at_least_float32(reward) + gamma * after).detach()


@takes_tensors
def critic_loss(q: Tensor, target: Tensor, *, huber_delta: float | None = None, weight: Tensor | None = None) -> LossOutput[Tensor]:
    """How far several critics are from one target.

    L = Σₙ ℓ(Qₙ − y),   ℓ(e) = ½ e², or with δ: ½ e² if |e| ≤ δ, else δ (|e| − ½ δ)

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), eq. 5, arXiv:1812.05905; without the half also Fujimoto
    et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), alg. 1, arXiv:1802.09477, and Kostrikov et
    al., "Offline Reinforcement Learning with Implicit Q-Learning" (2021), eq. 6, arXiv:2110.06169. The critics' losses are
    *summed*, so that each learns as if it were alone.

    Args:
        q: `[B, N]`; differentiable.
        target: `[B]`, y, taken without its gradient.
        huber_delta: δ > 0; None for the square alone.
        weight: `[B]`, importance weights or a mask; see `Rows`.

    Returns:
        The sum and its weight, and of each row the mean |Q − y| over critics. Metrics: `critic_loss`; `q`, the mean over critics;
        `target`; `td_error`, the mean |Q − y|.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: `huber_delta` is not positive.
    """
    expect_range("critic_loss(huber_delta)", huber_delta, 0.0, float("inf"), open_low=True)
    rows = Rows.of("critic_loss", q.shape[0], weight, q)
    q, target = rows.take("q", q, None), rows.take("target", target).detach()
    error = q - target[:, None]
    loss = distance(error, huber_delta).sum(1)
    distance_of_row = error.abs().mean(1)
    observed = {"critic_loss": loss, "q": q.mean(1), "target": target, "td_error": distance_of_row}
    return rows.output(loss, observed, td_error=distance_of_row)


@takes_tensors
def td_error(q: Tensor, target: Tensor) -> Tensor:
    """How surprised the critics are, which is what prioritised replay ranks transitions by.

    |δ| = 1/N Σₙ |Qₙ − y|

    Schaul et al., "Prioritized Experience Replay" (2016), sec. 3.3, arXiv:1511.05952.

    Args:
        q: `[B, N]`.
        target: `[B]`, y.

    Returns:
        `[B]`, no gradient.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    expect_rows("td_error(q)", q, q.shape[0], None)
    expect_rows("td_error(target)", target, q.shape[0])
    return (at_least_float32(q) - at_least_float32(target)[:, None]).abs().mean(1).detach()
