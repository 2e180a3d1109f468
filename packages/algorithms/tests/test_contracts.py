"""The published contracts find what is wrong: each broken implementation here is a mistake that was made somewhere."""

from dataclasses import dataclass, replace

import pytest
import torch

from rlinf.algorithms import GAE, PPOClip
from rlinf.core import Credit, LossOutput, Metric
from rlinf.core.errors import ContractError
from rlinf.core.testing.advantage import AdvantageContract
from rlinf.core.testing.loss import LossContract


def mean_instead_of_sum(batch, evaluation):
    output = PPOClip()(batch, evaluation)
    return replace(output, total=output.total / output.weight.clamp(min=1))


def ignores_the_mask(batch, evaluation):
    return PPOClip()(replace(batch, trajectory=replace(batch.trajectory, mask=batch.trajectory.mask | True)), evaluation)


def counts_rows(batch, evaluation):
    return replace(PPOClip()(batch, evaluation), weight=torch.tensor(float(len(batch))))


def averages_averages(batch, evaluation):
    output = PPOClip()(batch, evaluation)
    return replace(output, metrics={name: Metric(metric.mean) for name, metric in output.metrics.items()})


def constant(batch, evaluation):
    weight = batch.trajectory.mask.sum()
    return LossOutput(total=weight * (evaluation.logprob.sum() * 0 + 1), weight=weight)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (mean_instead_of_sum, r"LossOutput\.total, split"),
        (ignores_the_mask, r"where masked"),
        (counts_rows, r"where everything is masked"),
        (averages_averages, r"LossOutput\.metrics\.\w+, split"),
        (constant, r"expected a gradient"),
    ],
)
def test_broken_losses_are_found(loss, message):
    with pytest.raises(ContractError, match=message):
        LossContract(loss=loss, as_array=torch.as_tensor).run()


@dataclass
class Whitens:
    """Rank by rank, or over padding, or in place."""

    how: str

    def __call__(self, trajectory, *, all_reduce=None):
        credit = GAE(normalize_advantages=False)(trajectory)
        x, mask = credit.advantage, trajectory.mask
        if self.how == "alone":
            chosen = x[mask]
            x = torch.where(mask, (x - chosen.mean()) / (chosen.std(unbiased=False) + 1e-8), 0.0) if mask.any() else x
        elif self.how == "padding":
            x = (x - x.mean()) / (x.std() + 1e-8)
        elif self.how == "in place":
            trajectory.reward.mul_(2.0)
        elif self.how == "sometimes" and all_reduce is not None and bool(mask[0, -1]):
            all_reduce(x.sum())
        return Credit(advantage=x, target=credit.target)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("alone", "over two ranks"),
        ("padding", "expected 0 where masked"),
        ("in place", "left as it was"),
        ("sometimes", "expected the same number of calls on every rank"),
    ],
)
def test_broken_advantages_are_found(how, message):
    with pytest.raises(ContractError, match=message):
        AdvantageContract(advantage=Whitens(how), as_array=torch.as_tensor).run()
