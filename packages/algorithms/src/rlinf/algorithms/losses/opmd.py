"""Online policy mirror descent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from rlinf.algorithms.losses.aggregation import TOKEN_MEAN, Aggregation
from rlinf.algorithms.losses.inputs import LossInputs
from rlinf.algorithms.losses.policy_loss import PolicyLoss
from rlinf.algorithms.losses.reinforce import policy_gradient
from rlinf.algorithms.losses.terms import Terms
from rlinf.algorithms.losses.tiles import in_tiles
from rlinf.algorithms.shapes import expect_range
from rlinf.core.data import LossOutput


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
        """The damped policy gradient of each decision."""
        logprob, advantage = (x.need(name, by="OPMD") for name in ("logprob", "advantage"))
        return opmd_terms(logprob, advantage, x.mask, self.tau)
