"""The policy gradient itself, and damped by mirror descent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rlinf.algorithms.checks import takes_tensors
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.algorithms.losses.ratio import check_logprobs, masked_gain, observed_ratio, ratio_of
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, in_tiles, like, per_decision, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def reinforce(
    logprob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    logprob_old: Tensor | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """The policy gradient as a loss.

    L = −Â log π,   or off-policy −sg[ρ] Â log π with ρ = π / π_old

    Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning" (1992),
    doi:10.1007/BF00992696. With an advantage in groups and no ratio it is the loss of Chu et al., "GPG: A Simple and Strong
    Reinforcement Learning Baseline for Model Reasoning" (2025), arXiv:2504.02546.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        logprob_old: the same shape as `logprob`, under the weights that decided; None trains as if they were the current ones.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`; with `logprob_old` also `ratio`, `ratio_abs` and
        `approx_kl` as those of `ppo_clip`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    return in_tiles(reinforce_terms, aggregation, logprob=logprob, advantage=advantage, mask=mask, logprob_old=logprob_old)


def reinforce_terms(logprob: Tensor, advantage: Tensor, mask: Tensor, logprob_old: Tensor | None) -> Terms:
    """`reinforce` before it is summed."""
    if logprob_old is None:
        loss = policy_gradient("reinforce", logprob, advantage, mask)
        return Terms(loss, {"policy_loss": loss.detach()})
    # As a constant: the gradient of ρ log π would have a second term.
    ratio = ratio_of("reinforce", logprob.detach(), logprob_old.detach(), advantage, mask)
    loss = per_decision(zero_masked(logprob, mask) * (-ratio.value * ratio.gain))
    return Terms(loss, {"policy_loss": loss.detach(), **observed_ratio(ratio.log, mask)})


def policy_gradient(place: str, logprob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """−Â log π of each decision, `[B, T]`, 0 where masked.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    check_logprobs(place, advantage, mask, logprob=logprob)
    return per_decision(zero_masked(logprob, mask) * -like(masked_gain(advantage, mask), logprob))


@dataclass(frozen=True, slots=True)
class Reinforce(PolicyLoss):
    """REINFORCE by name: `algorithm.loss_type: reinforce`."""

    by_rows: ClassVar[bool] = True

    importance_ratio: bool = False
    """Whether decisions of older weights are weighted with their ratio; on-policy it is 1 and changes nothing."""

    def policy_terms(self, x: LossInputs) -> Terms:
        logprob, advantage = (x.need(name, by="Reinforce") for name in ("logprob", "advantage"))
        old = x.need("logprob_old", by="Reinforce") if self.importance_ratio else None
        return reinforce_terms(logprob, advantage, x.mask, old)


@takes_tensors
def opmd(
    logprob: Tensor, advantage: Tensor, mask: Tensor, *, tau: float = 1.0, aggregation: Aggregation = TOKEN_MEAN
) -> LossOutput[Tensor]:
    """Online policy mirror descent in its simple form: the policy gradient with a group's baseline, on-policy or off.

    L = −Â log π / (1 + τ)

    Pan et al., "Trinity-RFT: A General-Purpose and Unified Framework for Reinforcement Fine-Tuning of Large Language Models"
    (2025), arXiv:2505.17826, after Kimi Team, "Kimi k1.5: Scaling Reinforcement Learning with LLMs" (2025), arXiv:2501.12599. Â is
    the score less the mean of its group, the advantage `grpo` with `scale="none"`; no ratio corrects for older weights.

    Args:
        logprob: `[B, T]`, `[B, T, K]` or `[B, T, K, A]`, averaged over what follows T; under the current weights; differentiable.
        advantage: `[B, T]`; no gradient flows into it.
        mask: `[B, T]` bool, False where nothing was decided.
        tau: τ ≥ 0, the weight of staying near the current policy.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: τ is out of range.
    """
    expect_range("tau", tau, 0.0, float("inf"))
    return in_tiles(partial(opmd_terms, tau=tau), aggregation, logprob=logprob, advantage=advantage, mask=mask)


def opmd_terms(logprob: Tensor, advantage: Tensor, mask: Tensor, tau: float) -> Terms:
    """`opmd` before it is summed."""
    loss = policy_gradient("opmd", logprob, advantage, mask) / (1.0 + tau)
    return Terms(loss, {"policy_loss": loss.detach()})


@dataclass(frozen=True, slots=True)
class OPMD(PolicyLoss):
    """OPMD by name: `algorithm.loss_type: opmd`, with `adv_type: grpo` and `scale: none`."""

    by_rows: ClassVar[bool] = True

    tau: float = 1.0
    """τ ≥ 0, the weight of staying near the current policy."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        expect_range("tau", self.tau, 0.0, float("inf"))

    def policy_terms(self, x: LossInputs) -> Terms:
        logprob, advantage = (x.need(name, by="OPMD") for name in ("logprob", "advantage"))
        return opmd_terms(logprob, advantage, x.mask, self.tau)
