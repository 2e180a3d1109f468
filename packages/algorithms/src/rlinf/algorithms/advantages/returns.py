"""Returns and the advantages that follow from them: what rewards add up to, and when the critic's word is taken for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.normalize import Normalization
from rlinf.algorithms.advantages.transitions import transitions
from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.tiling import by_rows
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation.

    δₜ = rₜ + γ (1 − terminatedₜ) Vₜ₊₁ − Vₜ,   Âₜ = δₜ + γ λ (1 − endₜ) Âₜ₊₁,   end = terminated or truncated

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2016), eq. 11–16,
    arXiv:1506.02438. Where the paper has one `done`, we keep two flags:

    - A terminated decision does not bootstrap; a truncated one does, from the value of its final observation.
    - Nothing crosses an end. Where a row runs across resets, column t + 1 of `value` is as a rule the first observation of the
      new episode; pass `value_next` then, or truncated decisions bootstrap from the wrong one.
    - A masked column is skipped: credit crosses it without decay, and t + 1 above is the next unmasked column of the row if t is
      no end. If there is none (padding at the end of the row), Vₜ₊₁ is column t + 1 of `value`, the bootstrap. Rewards and ends
      of masked columns count nowhere. So observation tokens between the turns of a conversation cost nothing, and a row that was
      padded gives what the unpadded row gives.

    Args:
        reward: `[B, T]`, the reward of each decision.
        value: `[B, T + 1]`, the critic's value of each state; column t + 1 is the state that followed decision t. With
            `value_next`, `[B, T]` serves as well.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        gamma: discount in [0, 1]; or `[B, T]`, that of what follows each decision (γᵏ of a chunk of k steps).
        lam: bias–variance trade-off in [0, 1]; or `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, the value of the observation after each decision; None where `value` tells.

    Returns:
        Advantages and value targets Âₜ + Vₜ, each `[B, T]`, float32 or finer; both are 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `gamma` or `lam` is outside [0, 1].
    """
    # Tensors are cut into tiles with the rest; numbers are the same for every tile.
    numbers = {name: x for name, x in (("gamma", gamma), ("lam", lam)) if not isinstance(x, torch.Tensor)}
    tensors = {name: x for name, x in (("gamma", gamma), ("lam", lam)) if isinstance(x, torch.Tensor)}
    advantage, target = by_rows(
        partial(_gae, **numbers),
        reward=reward,
        value=value,
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        value_next=value_next,
        **tensors,
    )
    return advantage, target


def _gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None,
    value_next: Tensor | None,
) -> tuple[Tensor, Tensor]:
    t = transitions("gae", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    advantage = t.scan(t.ahead(t.after) - t.now, t.gamma * t.factor("gae(lam)", lam))
    return advantage, advantage + t.now


@dataclass(frozen=True, slots=True)
class GAE(Estimator):
    """Generalised advantage estimation by name: `algorithm.adv_type: gae`."""

    needs: ClassVar[Mapping[Need, str]] = {"value": ""}
    has_targets: ClassVar[bool] = True

    gamma: float = 0.99
    """Discount of one decision, in [0, 1]."""
    gae_lambda: float = 0.95
    """Bias–variance trade-off in [0, 1]; 0 is one-step TD, 1 is Monte Carlo with a baseline."""
    normalize_advantages: bool | Normalization = field(default=True, kw_only=True)
    """Over which decisions advantages are normalised to mean 0 and variance 1: "batch" (or true), all unmasked decisions of all
    ranks; "group", those of the rows of a group; "none" (or false), for rewards whose scale means something."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("gae_lambda", self.gae_lambda, 0.0, 1.0)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
        return gae(**x.transitions(by="GAE"), gamma=self.gamma, lam=self.gae_lambda)


@takes_tensors
def td_errors(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Temporal-difference errors.

    δₜ = rₜ + γ (1 − terminatedₜ) Vₜ₊₁ − Vₜ

    Sutton, "Learning to Predict by the Methods of Temporal Differences" (1988). Arguments and errors are those of `gae`, and what
    follows a decision at an end, at a reset and before masked columns is as there.

    Returns:
        `[B, T]`, 0 where masked.
    """
    t = transitions("td_errors", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    return t.ahead(t.after) - t.now


@takes_tensors
def lambda_returns(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    lam: float | Tensor,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """λ-returns: each step takes the critic's word with weight 1 − λ and goes on with weight λ.

    Gₜ = rₜ + γ (1 − terminatedₜ) [(1 − λ) Vₜ₊₁ + λ Gₜ₊₁],   Gₜ₊₁ = Vₜ₊₁ after a truncation and where the row stops

    Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), §12.1. It is V + Â of `gae`. Arguments and errors are
    those of `gae`, and what follows a decision at an end, at a reset and before masked columns is as there.

    Returns:
        `[B, T]`, 0 where masked.
    """
    t = transitions("lambda_returns", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    onward = t.factor("lambda_returns(lam)", lam)
    # Where no decision follows in the row, all weight is on the value that bootstraps.
    trusted = 1.0 - t.carries.to(t.reward.dtype) * onward
    return t.scan(t.ahead(trusted * t.after), t.gamma * onward)


@takes_tensors
def discounted_returns(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    value: Tensor | None = None,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Discounted sums of the rewards to come.

    Gₜ = rₜ + γ (1 − terminatedₜ) Gₜ₊₁,   Gₜ₊₁ = Vₜ₊₁ after a truncation and where the row stops

    Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), eq. 3.8. Arguments and errors are those of `gae`, and what
    follows a decision at an end, at a reset and before masked columns is as there. Without a `value` to bootstrap from it is 0,
    as if every end and every stop of a row were terminal.

    Returns:
        `[B, T]`, 0 where masked.
    """
    if value is None:
        # `[B, T]`, which is only allowed beside `value_next`.
        value = torch.zeros_like(reward)
        value_next = value if value_next is None else value_next
    t = transitions("discounted_returns", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    stops = 1.0 - t.carries.to(t.reward.dtype)
    return t.scan(t.ahead(stops * t.after), t.gamma)


@takes_tensors
def n_step_returns(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    n: int,
    lam: float | Tensor = 1.0,
    mask: Tensor | None = None,
    value_next: Tensor | None = None,
) -> Tensor:
    """Returns that look n decisions ahead and take the critic's word for the rest.

    Gₜ⁽⁰⁾ = Vₜ,   Gₜ⁽ⁿ⁾ = rₜ + γ (1 − terminatedₜ) [(1 − λ) Vₜ₊₁ + λ Gₜ₊₁⁽ⁿ⁻¹⁾]

    Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), eq. 7.1; with λ < 1 a λ-return that is cut after n steps.
    A look ahead that meets a truncation, or the stop of its row, ends there and bootstraps; what follows a decision is as in
    `gae`, so masked columns are not counted as steps.

    Args:
        reward: `[B, T]`, the reward of each decision.
        value: `[B, T + 1]`, the critic's value; `[B, T]` serves with `value_next`.
        terminated: `[B, T]` bool, the task itself ended here.
        truncated: `[B, T]` bool, a limit cut the episode here.
        gamma: discount in [0, 1]; or `[B, T]`.
        n: how many rewards are added up, at least 1.
        lam: weight of going on, in [0, 1]; or `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided; None if something was everywhere.
        value_next: `[B, T]`, the value of the observation after each decision; None where `value` tells.

    Returns:
        `[B, T]`, 0 where masked.

    Raises:
        ShapeError: a rank or a size disagrees; the message names the argument.
        ConfigError: `n` is less than 1, or `gamma` or `lam` outside [0, 1].
    """
    expect_at_least("n_step_returns(n)", n, 1)
    t = transitions("n_step_returns", reward, value, terminated, truncated, gamma=gamma, mask=mask, value_next=value_next)
    onward = t.factor("n_step_returns(lam)", lam)
    one_step = t.ahead(t.after)
    found = one_step
    for _ in range(min(n, reward.shape[1]) - 1):
        # (1 − λ) V + λ G is V + λ (G − V), of which V is in `one_step` already.
        found = one_step + t.gamma * onward * (t.next_of(found, t.after) - t.after)
    return found


@dataclass(frozen=True, slots=True)
class DiscountedReturns(Estimator):
    """The return as the advantage, as in REINFORCE: `algorithm.adv_type: discounted_returns`.

    Williams (1992). With a critic, truncated rows bootstrap from it and it learns the returns; without, they end at 0.
    """

    has_targets: ClassVar[bool] = True

    gamma: float = 1.0
    """Discount of one decision, in [0, 1]."""
    normalize_advantages: bool | Normalization = field(default=True, kw_only=True)
    """Over which decisions advantages are normalised to mean 0 and variance 1: "batch" (or true), all unmasked decisions of all
    ranks; "group", those of the rows of a group; "none" (or false), for rewards whose scale means something."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor | None]:
        """Advantages, and value targets where there is a critic, each `[B, T]`."""
        reward, terminated, truncated = (x.need(name, by="DiscountedReturns") for name in ("reward", "terminated", "truncated"))
        found = discounted_returns(
            reward, terminated, truncated, gamma=self.gamma, value=x.value, mask=x.mask, value_next=x.value_next
        )
        return found, None if x.value is None else found


@dataclass(frozen=True, slots=True)
class NStep(Estimator):
    """n-step returns with the critic as a baseline: `algorithm.adv_type: n_step`."""

    needs: ClassVar[Mapping[Need, str]] = {"value": ""}
    has_targets: ClassVar[bool] = True

    gamma: float = 0.99
    """Discount of one decision, in [0, 1]."""
    n: int = 5
    """How many rewards are added up before the critic's word is taken, at least 1."""
    lam: float = 1.0
    """Weight of going on, in [0, 1]."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("lam", self.lam, 0.0, 1.0)
        expect_at_least("n", self.n, 1)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
        """Advantages Gₜ⁽ⁿ⁾ − Vₜ and value targets Gₜ⁽ⁿ⁾, each `[B, T]`."""
        given = x.transitions(by="NStep")
        target = n_step_returns(**given, gamma=self.gamma, n=self.n, lam=self.lam)
        return target - given["value"][:, : target.shape[1]].where(x.decided(by="NStep"), 0.0), target
