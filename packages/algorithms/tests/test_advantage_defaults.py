"""What holds where nobody says otherwise: others rely on these numbers."""

import pytest
import torch

from rlinf.algorithms.advantages.group import GRPO, grpo
from rlinf.algorithms.advantages.multi_turn import GRPODynamic, GRPOVideo, grpo_dynamic, grpo_video
from rlinf.algorithms.advantages.off_policy import VTrace
from rlinf.algorithms.advantages.per_decision import Raw, raw
from rlinf.algorithms.advantages.reinforce_pp import ReinforcePlusPlus
from rlinf.algorithms.advantages.returns import GAE, DiscountedReturns, NStep
from rlinf.algorithms.advantages.statistics import whiten


@pytest.mark.parametrize(
    ("estimator", "same"),
    [
        (GAE(), GAE(gamma=0.99, gae_lambda=0.95, normalize_advantages=True)),
        (DiscountedReturns(), DiscountedReturns(gamma=1.0, normalize_advantages=True)),
        (NStep(), NStep(gamma=0.99, n=5, lam=1.0, normalize_advantages=False)),
        (VTrace(), VTrace(gamma=0.99, lam=1.0, clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0)),
        (GRPO(), GRPO(scale="group", unbiased=True, eps=1e-6, leave_one_out=False)),
        (GRPODynamic(), GRPODynamic(advantage_mode="turn", scale="group", unbiased=True, eps=1e-6)),
        (GRPOVideo(advantage_mode="frame"), GRPOVideo(advantage_mode="frame", unbiased=True, eps=1e-6)),
        (ReinforcePlusPlus(), ReinforcePlusPlus(use_reinpp_baseline=False, reinpp_kl_beta=0.0, gamma=1.0, unbiased=False)),
        (Raw(), Raw(normalize_advantages=False, eps=1e-5)),
    ],
)
def test_estimators(estimator, same):
    assert estimator == same


def test_epsilons():
    """Numbers so close to each other that ε decides: ±d has the deviation d√2 (unbiased) or d."""
    mask, group = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    near = torch.tensor([1e-6, -1e-6])
    expected = near / (2e-12**0.5 + 1e-6)
    torch.testing.assert_close(grpo(near, group), expected)
    torch.testing.assert_close(grpo_dynamic(near, group, group), expected)
    torch.testing.assert_close(grpo_dynamic(near, torch.tensor([0, 1]), group, mode="trajectory"), expected)
    torch.testing.assert_close(grpo_video(near[:, None], group, mask, mode="frame")[:, 0], expected)
    torch.testing.assert_close(whiten(near[:, None] / 100, mask)[:, 0], near / (1e-6 + 1e-6))
    torch.testing.assert_close(raw(near[:, None] * 10, mask, normalize=True)[:, 0], near * 10 / (2e-10**0.5 + 1e-5))
