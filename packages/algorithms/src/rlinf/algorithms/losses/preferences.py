"""Preferences between pairs of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.terms import Terms, summed, zero_masked
from rlinf.core.config import expect_range
from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def dpo(
    logprob_chosen: Tensor,
    logprob_rejected: Tensor,
    logprob_ref_chosen: Tensor,
    logprob_ref_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    mask: Tensor | None = None,
) -> LossOutput[Tensor]:
    """Direct preference optimisation: of two answers to a question, the chosen one shall become likelier than the rejected one.

    L = −(1 − ε) log σ(h) − ε log σ(−h),   h = β (log π(y_w) − log π_ref(y_w) − log π(y_l) + log π_ref(y_l))

    Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model" (2023), eq. 7,
    arXiv:2305.18290, with ε = 0; ε > 0 is Mitchell, "A note on DPO with noisy preferences & relationship to IPO" (2023),
    https://ericmitchell.ai/cdpo.pdf. β (log π − log π_ref) is the reward that the policy stands for.

    Args:
        logprob_chosen: `[B]`, log π(y_w), the sum over the tokens of the chosen answer; differentiable.
        logprob_rejected: `[B]`, log π(y_l), that of the rejected answer; differentiable.
        logprob_ref_chosen: `[B]`, log π_ref(y_w), under the reference policy; no gradient flows into it.
        logprob_ref_rejected: `[B]`, log π_ref(y_l); no gradient flows into it.
        beta: β > 0, how dear it is to leave the reference.
        label_smoothing: ε in [0, 0.5], the share of pairs whose preference is the wrong way round.
        mask: `[B]` bool, False for a pair that is padding; None for all.

    Returns:
        The sum over pairs and their number. Metrics: `dpo_loss`; `reward_chosen` and `reward_rejected`, β (log π − log π_ref) of
        both, `reward_margin`, their difference h, and `reward_accuracy`, the share of pairs with h > 0.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a parameter is out of range; the message names it.
    """
    expect_range("beta", beta, 0.0, float("inf"), open_low=True)
    expect_range("label_smoothing", label_smoothing, 0.0, 0.5)
    if logprob_chosen.dim() != 1:
        raise ShapeError("dpo(logprob_chosen)", f"expected [B], found {tuple(logprob_chosen.shape)}")
    others = {"logprob_rejected": logprob_rejected, "logprob_ref_chosen": logprob_ref_chosen}
    others["logprob_ref_rejected"] = logprob_ref_rejected
    valid = torch.ones_like(logprob_chosen, dtype=torch.bool) if mask is None else mask.bool()
    for name, tensor in {**others, "mask": valid}.items():
        expect_shape(f"dpo({name})", tensor, logprob_chosen.shape)
    chosen = beta * (zero_masked(logprob_chosen, valid) - zero_masked(logprob_ref_chosen.detach(), valid))
    rejected = beta * (zero_masked(logprob_rejected, valid) - zero_masked(logprob_ref_rejected.detach(), valid))
    margin = chosen - rejected
    loss = -(1.0 - label_smoothing) * torch.nn.functional.logsigmoid(margin)
    if label_smoothing:
        loss = loss - label_smoothing * torch.nn.functional.logsigmoid(-margin)
    observed = {
        "dpo_loss": loss,
        "reward_chosen": chosen,
        "reward_rejected": rejected,
        "reward_margin": margin,
        "reward_accuracy": (margin > 0).to(margin.dtype),
    }
    # Pairs as rows of one decision, so that sums, weights and metrics are those of every other loss.
    pairs = valid[:, None]
    found = {name: zero_masked(x.detach()[:, None], pairs) for name, x in observed.items()}
    return summed(Terms(zero_masked(loss[:, None], pairs), found), pairs)
