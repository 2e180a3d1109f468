"""Generalised advantage estimation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from torch import Tensor

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.normalize import Normalization
from rlinf.algorithms.advantages.transitions import transitions
from rlinf.algorithms.checks import expect_range
from rlinf.algorithms.tiling import by_rows
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce


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
    numbers = {name: x for name, x in (("gamma", gamma), ("lam", lam)) if not isinstance(x, Tensor)}
    tensors = {name: x for name, x in (("gamma", gamma), ("lam", lam)) if isinstance(x, Tensor)}
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
    """As in `Estimator`."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("gae_lambda", self.gae_lambda, 0.0, 1.0)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor]:
        """Advantages and value targets of tensors, each `[B, T]`."""
        reward, value, terminated, truncated = (x.need(name, by="GAE") for name in ("reward", "value", "terminated", "truncated"))
        advantage, target = gae(
            reward,
            value,
            terminated,
            truncated,
            gamma=self.gamma,
            lam=self.gae_lambda,
            mask=x.mask,
            value_next=x.value_next,
        )
        return advantage, target
