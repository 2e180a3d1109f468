"""What all policy losses chosen by name have in common: their inputs, and the terms that any of them can have."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rlinf.algorithms.checks import required
from rlinf.algorithms.losses.correction import Correction, CorrectionConfig, corrected
from rlinf.algorithms.losses.entropy import entropy_terms
from rlinf.algorithms.losses.filters import opsm
from rlinf.algorithms.losses.kl import KLType, check_kl_type, kl_terms
from rlinf.algorithms.losses.ratio import at_granularity
from rlinf.algorithms.losses.terms import Aggregation, Mode, Terms, in_tiles, joined, summed
from rlinf.core.config import expect_range
from rlinf.core.data import Batch, LossOutput, Rescored
from rlinf.core.data.sequences import Granularity, check_granularity
from rlinf.core.declarations import Need

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The tensors that a policy loss may ask for. A field is None where nobody gave it; `need` refuses that by name.

    `…` stands for the granularity of log-probabilities: nothing, K, or K and A.
    """

    mask: Tensor
    """`[B, T]` bool, False where nothing was decided."""
    logprob: Tensor | None = None
    """`[B, T, …]`, under the current weights; differentiable."""
    logprob_old: Tensor | None = None
    """`[B, T, …]`, under the weights that decided, as the rollout computed it."""
    logprob_proximal: Tensor | None = None
    """`[B, T, …]`, under the trainer's weights before the update."""
    logprob_ref: Tensor | None = None
    """`[B, T]` or the shape of `logprob`, under a reference policy."""
    advantage: Tensor | None = None
    """`[B, T]`."""
    target: Tensor | None = None
    """`[B, T]`, what the critic should say."""
    value: Tensor | None = None
    """`[B, T]`, by the current weights; differentiable."""
    value_old: Tensor | None = None
    """`[B, T]`, by the weights that decided."""
    entropy: Tensor | None = None
    """`[B, T]` or finer, by the current weights; differentiable."""
    version: Tensor | None = None
    """`[B, T]` int, the version of the weights that decided."""
    version_now: int | None = None
    """The version of the current weights."""

    @classmethod
    def of(cls, batch: Batch[Tensor], evaluation: Rescored[Tensor]) -> LossInputs:
        """What a batch and its evaluation hold."""
        t = batch.trajectory
        return cls(
            mask=t.mask,
            logprob=evaluation.logprob,
            logprob_old=t.logprob,
            logprob_proximal=t.proximal,
            logprob_ref=t.reference,
            advantage=batch.credit.advantage,
            target=batch.credit.target,
            value=evaluation.value,
            value_old=None if t.value is None else t.value[:, :-1],
            entropy=evaluation.entropy,
            version=t.version,
            version_now=evaluation.version,
        )

    def need(self, name: str, *, by: str) -> Any:
        """The field `name` for `by`; a `ShapeError` that names both if it is None."""
        return required(self, name, by=by, remedies=_REMEDIES)

    def decisions(self, *, by: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What nearly all policy losses of `by` need: `logprob`, `logprob_old`, `advantage` and `mask`; errors as of `need`."""
        logprob, old, advantage = (self.need(name, by=by) for name in ("logprob", "logprob_old", "advantage"))
        return logprob, old, advantage, self.mask


_REMEDIES = {
    "value": "Use a policy with a critic.",
    "value_old": "Use a policy with a critic.",
    "target": "Use an advantage with a critic, such as 'gae'.",
    "entropy": "Use a policy that computes entropies, or set entropy_bonus to 0.",
    "logprob_ref": "Score the batch with a reference policy (Trajectory.reference), or set kl_beta to 0.",
    "logprob_proximal": "Score the batch with the trainer before the update (Trajectory.proximal).",
    "version_now": "Use a trainer that counts versions (Rescored.version).",
}
INPUT_NAMES = tuple(f.name for f in dataclasses.fields(LossInputs))


@dataclass(frozen=True, slots=True)
class PolicyLoss(ABC):
    """A policy's loss by name: its own term, and those that any policy loss can have.

    L = w · ℓ_policy + β KL(π ‖ π_ref) − c_H H + what a subclass adds

    A subclass says what a decision costs (`policy_terms`); everything else is the same for all:

    - Log-probabilities are added up to `logprob_type` first, so that a subclass sees what counts as one action.
    - `correction` gives the weight w of each decision from `logprob_proximal`, the trainer's probabilities before the update, over
      `logprob_old`, the rollout's. It touches the policy's own term alone. That term is then given `logprob_proximal` as its
      `logprob_old`: its ratio measures how far the update went, and w how far rollout and trainer were apart before it; the
      product is the whole way. Without a correction `logprob_old` stays what the rollout said.
    - The weight of the output counts decisions as `loss_agg_func` says, those that a correction or `opsm_delta` dropped among them.
    """

    by_rows: ClassVar[bool] = False
    """Whether a row's terms depend on the tensors of that row alone, and gradients go into no others. A large batch is then
    computed some rows at a time, which takes a fraction of the memory; its gradient can't be differentiated once more."""
    loss_agg_func: Mode = field(default="token-mean", kw_only=True)
    """How decisions are aggregated; see `Aggregation`."""
    loss_agg_length: int | None = field(default=None, kw_only=True)
    """The constant of `constant-length`, in decisions."""
    entropy_bonus: float = field(default=0.0, kw_only=True)
    """c_H, the weight of the entropy."""
    entropy_type: Granularity | None = field(default=None, kw_only=True)
    """The granularity to which entropies are added up; see `at_granularity`. None leaves them as the model gives them. The
    remaining parts of a decision are averaged."""
    logprob_type: Granularity | None = field(default=None, kw_only=True)
    """The granularity to which log-probabilities are added up; see `at_granularity`. None leaves them as the model gives them.
    Each remaining part of a decision has a ratio of its own."""
    kl_beta: float = field(default=0.0, kw_only=True)
    """β, the weight of the divergence from the reference policy."""
    kl_type: KLType = field(default="low_var_kl", kw_only=True)
    """How the divergence is estimated; see `kl_penalty`. By default k3 with bounds, so that one token can't spoil an update."""
    correction: CorrectionConfig | None = field(default=None, kw_only=True)
    """What corrects for a rollout engine that computes other probabilities than the trainer; None for nothing."""

    opsm_delta: float | None = field(default=None, kw_only=True)
    """δ ≥ 0 of off-policy sequence masking, in nats: decisions of negative advantage add nothing to the policy's own term where the
    mean of log π_old − log π over their row, with the rollout's π_old, is greater; see `opsm`. None for no such mask."""

    def __post_init__(self) -> None:
        Aggregation(self.loss_agg_func, self.loss_agg_length)
        expect_range("entropy_bonus", self.entropy_bonus, 0.0, float("inf"))
        expect_range("kl_beta", self.kl_beta, 0.0, float("inf"))
        expect_range("opsm_delta", self.opsm_delta, 0.0, float("inf"))
        check_kl_type(self.kl_type, place="kl_type")
        for place, level in (("logprob_type", self.logprob_type), ("entropy_type", self.entropy_type)):
            if level is not None:
                check_granularity(level, place=place)

    @property
    def needs(self) -> Mapping[Need, str]:
        terms: dict[Need, str] = {"reference": "kl_beta", "entropy": "entropy_bonus", "proximal": "correction"}
        return {**self.own_needs(), **{need: key for need, key in terms.items() if getattr(self, key)}}

    def own_needs(self) -> Mapping[Need, str]:
        """What a subclass can't do without, beside what the common terms need."""
        return {}

    def __call__(self, batch: Batch[Tensor], evaluation: Rescored[Tensor]) -> LossOutput[Tensor]:
        """The loss of a batch, as a sum and its weight.

        Args:
            batch: decisions with their credit, `[B, T]`.
            evaluation: what the current weights say of them.

        Raises:
            ShapeError: something that the loss needs is None, or has another shape; the message names it.
        """
        return self.of(LossInputs.of(batch, evaluation))

    def of(self, x: LossInputs) -> LossOutput[Tensor]:
        """The loss of tensors, as a sum and its weight."""
        # A subclass from another package may mix rows, for example by a batch mean, and tiles would change its value.
        aggregation = Aggregation(self.loss_agg_func, self.loss_agg_length)
        if not self.by_rows:
            return summed(self._terms(x), x.mask, aggregation)
        tensors = {name: getattr(x, name) for name in INPUT_NAMES if name != "version_now"}

        def terms(**rows: Tensor | None) -> Terms:
            return self._terms(replace(x, **rows))  # pyright: ignore[reportArgumentType]

        return in_tiles(terms, aggregation, **tensors)

    def _terms(self, x: LossInputs) -> Terms:
        """What each decision adds to the whole loss."""
        x = self._coarse(x)
        parts = [self._masked(self._policy(x), x), *self.other_terms(x)]
        # With a reference but no weight the divergence is still logged.
        if self.kl_beta or x.logprob_ref is not None:
            logprob, reference = (x.need(name, by=type(self).__name__) for name in ("logprob", "logprob_ref"))
            parts.append(_times(self.kl_beta, kl_terms(logprob, reference, x.mask, self.kl_type)))
        if self.entropy_bonus or x.entropy is not None:
            parts.append(_times(self.entropy_bonus, entropy_terms(x.need("entropy", by=type(self).__name__), x.mask)))
        return joined(parts)

    @abstractmethod
    def policy_terms(self, x: LossInputs) -> Terms:
        """What each decision adds to the policy's loss."""

    def other_terms(self, x: LossInputs) -> list[Terms]:
        """What a subclass adds to the policy's loss, such as its critic's."""
        return []

    def _coarse(self, x: LossInputs) -> LossInputs:
        """The inputs at the granularity of the loss."""
        level = self.logprob_type
        return replace(
            x,
            logprob=_at(level, x.logprob),
            logprob_old=_at(level, x.logprob_old),
            logprob_proximal=_at(level, x.logprob_proximal),
            logprob_ref=_at(level, x.logprob_ref),
            entropy=_at(self.entropy_type, x.entropy),
        )

    def _policy(self, x: LossInputs) -> Terms:
        if self.correction is None:
            return self.policy_terms(x)
        before, rollout = (x.need(name, by=type(self).__name__) for name in ("logprob_proximal", "logprob_old"))
        # The ratio of the update starts from the trainer's own probabilities; the gap to the rollout is in the weight.
        terms = self.policy_terms(replace(x, logprob_old=before))
        return corrected(terms, self.correction.of(before, rollout, x.mask))

    def _masked(self, terms: Terms, x: LossInputs) -> Terms:
        """The policy's terms without what `opsm_delta` drops."""
        if self.opsm_delta is None:
            return terms
        keep = opsm(*x.decisions(by=type(self).__name__), delta=self.opsm_delta)
        dropped = {"opsm_dropped": (x.mask.bool() & ~keep).float()}
        return corrected(terms, Correction(keep.to(terms.loss.dtype), keep, dropped))


def _at(level: Granularity | None, x: Tensor | None) -> Tensor | None:
    return x if x is None or level is None else at_granularity(x, level)


def _times(factor: float, terms: Terms) -> Terms:
    """The terms times a factor; of a factor of 0 only the metrics are left, without a way back for gradients."""
    # 0 · NaN is NaN: a term of weight 0 must not spoil the loss.
    loss = factor * terms.loss if factor else terms.loss.new_zeros(()).expand_as(terms.loss)
    return Terms(loss, terms.observed, terms.explained, terms.by_row)
