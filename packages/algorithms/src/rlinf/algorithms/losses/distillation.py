"""Learning from a teacher: by its verdict on sampled decisions, or by its whole distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.policy.reinforce import policy_gradient
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import masked_gain
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, in_tiles, summed, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def opd(logprob: Tensor, advantage: Tensor, mask: Tensor, *, aggregation: Aggregation = TOKEN_MEAN) -> LossOutput[Tensor]:
    """On-policy distillation: the policy gradient whose advantage is what a teacher says of the student's own decisions.

    L = −sg[Â] log π,   Â = log π_teacher − log π_student

    Agarwal et al., "On-Policy Distillation of Language Models" (2024), arXiv:2306.13649, with the reverse divergence of each
    decision as the reward. The mean of −Â is an estimate of KL(π_student ‖ π_teacher).

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        advantage: `[B, T]`, log π_teacher − log π_student when it decided, not normalised; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`; `opd_reward`, the mean Â; `opd_reverse_kl`, the
        mean −Â.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    return in_tiles(opd_terms, aggregation, logprob=logprob, advantage=advantage, mask=mask)


def opd_terms(logprob: Tensor, advantage: Tensor, mask: Tensor) -> Terms:
    """`opd` before it is summed."""
    loss = policy_gradient("opd", logprob, advantage, mask)
    gain = masked_gain(advantage, mask)
    return Terms(loss, {"policy_loss": loss.detach(), "opd_reward": gain, "opd_reverse_kl": -gain})


@dataclass(frozen=True, slots=True)
class OPD(PolicyLoss):
    """On-policy distillation by name: `algorithm.loss_type: opd`, with `adv_type: opd`."""

    by_rows: ClassVar[bool] = True

    def policy_terms(self, x: LossInputs) -> Terms:
        """The teacher's verdict on each decision."""
        logprob, advantage = (x.need(name, by="OPD") for name in ("logprob", "advantage"))
        return opd_terms(logprob, advantage, x.mask)


@takes_tensors
def forward_kl(
    student: Tensor, teacher: Tensor, mask: Tensor, *, temperature: float = 1.0, aggregation: Aggregation = TOKEN_MEAN
) -> LossOutput[Tensor]:
    """The divergence of the student from the teacher, weighted by the teacher: it covers all that the teacher may say.

    L = KL(p_T ‖ p_S) = Σᵥ p_T (log p_T − log p_S),   p = softmax(logits / τ)

    Hinton et al., "Distilling the Knowledge in a Neural Network" (2015), arXiv:1503.02531; not multiplied with τ².

    Args:
        student: `[B, T, V]` logits or log-probabilities; differentiable.
        teacher: the same shape.
        mask: `[B, T]` bool, False where nothing is compared.
        temperature: τ > 0.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `divergence`. What p_T never says (−∞) adds nothing.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: the temperature is not above 0.
    """
    student, teacher = _distributions("forward_kl", student, teacher, mask, temperature)
    return _summed(_divergence(teacher, student), mask, aggregation)


@takes_tensors
def reverse_kl(
    student: Tensor, teacher: Tensor, mask: Tensor, *, temperature: float = 1.0, aggregation: Aggregation = TOKEN_MEAN
) -> LossOutput[Tensor]:
    """The divergence of the student from the teacher, weighted by the student: it keeps to what the teacher likes best.

    L = KL(p_S ‖ p_T) = Σᵥ p_S (log p_S − log p_T),   p = softmax(logits / τ)

    Gu et al., "MiniLLM: Knowledge Distillation of Large Language Models" (2024), arXiv:2306.08543. Arguments, returns and errors
    are those of `forward_kl`; here what p_S never says (−∞) adds nothing.
    """
    student, teacher = _distributions("reverse_kl", student, teacher, mask, temperature)
    return _summed(_divergence(student, teacher), mask, aggregation)


@takes_tensors
def generalized_jsd(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """The Jensen–Shannon divergence of student and teacher, weighted between them.

    L = β KL(p_T ‖ m) + (1 − β) KL(p_S ‖ m),   m = β p_T + (1 − β) p_S,   p = softmax(logits / τ)

    Agarwal et al., "On-Policy Distillation of Language Models" (2024), eq. 1, arXiv:2306.13649. At the ends it is 0, so there we
    give what it tends to when divided by β or by 1 − β, as TRL does: β = 0 is `forward_kl`, β = 1 is `reverse_kl`.

    Args:
        student: `[B, T, V]` logits or log-probabilities; differentiable.
        teacher: the same shape.
        mask: `[B, T]` bool, False where nothing is compared.
        beta: β in [0, 1].
        temperature: τ > 0.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `divergence`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: β or the temperature is out of its range.
    """
    expect_range("beta", beta, 0.0, 1.0)
    student, teacher = _distributions("generalized_jsd", student, teacher, mask, temperature)
    if beta == 0.0:
        return _summed(_divergence(teacher, student), mask, aggregation)
    if beta == 1.0:
        return _summed(_divergence(student, teacher), mask, aggregation)
    # logaddexp(−∞, −∞) has a NaN gradient.
    never = student.isneginf() & teacher.isneginf()
    parts = (zero_masked(p, ~never) for p in (student, teacher))
    mixture = torch.logaddexp(next(parts) + math.log1p(-beta), next(parts) + math.log(beta))
    loss = beta * _divergence(teacher, mixture) + (1.0 - beta) * _divergence(student, mixture)
    return _summed(loss, mask, aggregation)


def _distributions(place: str, student: Tensor, teacher: Tensor, mask: Tensor, temperature: float) -> list[Tensor]:
    """Log-probabilities at a temperature; uniform where masked."""
    expect_range("temperature", temperature, 0.0, float("inf"), open_low=True)
    if student.dim() != 3:
        raise ShapeError(f"{place}(student)", f"expected [B, T, V], found {tuple(student.shape)}")
    expect_shape(f"{place}(teacher)", teacher, student.shape)
    expect_shape(f"{place}(mask)", mask, student.shape[:2])
    return [torch.log_softmax(zero_masked(x, mask) / temperature, dim=-1) for x in (student, teacher.detach())]


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities `[B, T, V]`, where what p never says adds nothing."""
    # 0 · (−∞ − x) is NaN, while its limit is 0.
    said = ~p.isneginf()
    return (p.exp() * (zero_masked(p, said) - zero_masked(q, said))).sum(-1)


def _summed(loss: Tensor, mask: Tensor, aggregation: Aggregation) -> LossOutput[Tensor]:
    loss = zero_masked(loss, mask)
    return summed(Terms(loss, {"divergence": loss.detach()}), mask, aggregation)
